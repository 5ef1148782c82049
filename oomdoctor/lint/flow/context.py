"""Under what circumstances a line runs: loops, conditions, context managers, handlers and calls around it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from oomdoctor.lint.flow.values import UNKNOWN, Value

if TYPE_CHECKING:
    import ast

    from oomdoctor.lint.code.functions import Function


class Gradients(StrEnum):
    """Whether autograd records."""

    ON = "on"
    OFF = "off"  # no_grad, inference_mode, set_grad_enabled(False), or a framework that does it
    UNKNOWN = "unknown"  # set_grad_enabled(flag), or a decorator or context manager that nobody here knows


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A `for`, a `while` or a comprehension; each is one object, compared by identity.

    Attributes:
        node: The statement or the comprehension.
        iterates: What a `for` goes over, without `enumerate`, `tqdm`, `zip` and their like around it.
        counter: Name of the variable that counts iterations: of `enumerate` or of `for i in range(...)`.
        start: What `counter` begins with; None where that is not a number that is written out.
        over_batches: Whether an iteration takes a batch: it goes over a loader, or draws from one with `next`.
        function: The function whose body has it; None at the top of a module.
        values: What names meant just before it.
    """

    node: ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    iterates: Value = UNKNOWN
    counter: str | None = None
    start: int | None = None
    over_batches: bool = False
    function: Function | None = None
    values: dict[str, Value] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition that holds where a line runs: of an `if` around it, or of one that left early before it.

    Attributes:
        test: The condition as written.
        holds: False where the line runs if the condition does not hold: in an `else`, after `if ...: continue`.
        values: What names meant where it was tested; a name that stands for a condition leads to its `node`.
        left_by: `continue`, `break`, `return` or `raise`: how those left for whom it was the other way; None in an
            `if` around the line.
        depth: How many loops were around the test.
    """

    test: ast.expr
    holds: bool
    values: dict[str, Value] = field(default_factory=dict, repr=False)
    left_by: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class With:
    """A context manager around a line.

    Attributes:
        node: The expression, such as the call `model.no_sync()`.
        name: Qualified name of what is called (`torch.no_grad`), or `.` and the method's name (`.no_sync`,
            `.accumulate`); empty where it is neither.
        value: The object whose method it is, for the latter.
    """

    node: ast.expr
    name: str
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A `try` around a line.

    Attributes:
        node: The statement.
        handler: The handler that the line is in; None in the body, in `else` and in `finally`.
        part: `body`, `handler`, `else` or `finally`.
    """

    node: ast.Try | ast.TryStar
    handler: ast.ExceptHandler | None
    part: str


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A call that was followed into the function's body.

    Attributes:
        function: The function that is called.
        call: The call; None for the function with which the run begins.
    """

    function: Function
    call: ast.Call | None


@dataclass(frozen=True, slots=True)
class Context:
    """All of it. Each tuple is outermost first and goes through all the calls that were followed.

    Attributes:
        loops: Loops around the line.
        guards: Conditions that hold, in the order in which they were tested.
        withs: Context managers around it.
        attempts: `try` statements around it.
        frames: Calls that led to it.
        gradients: Whether autograd records there.
        managed: A framework decides when gradients are zeroed and steps are made: `accelerate` (under `accumulate`),
            `deepspeed`, `lightning`, `transformers`, `ignite`; None where the code itself does.
    """

    loops: tuple[Loop, ...] = ()
    guards: tuple[Guard, ...] = ()
    withs: tuple[With, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    frames: tuple[Frame, ...] = ()
    gradients: Gradients = Gradients.ON
    managed: str | None = None

    def but(self, **changes: object) -> Context:
        """The same circumstances but for these."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def handlers(self) -> tuple[ast.ExceptHandler, ...]:
        """The exception handlers around the line, outermost first."""
        return tuple(attempt.handler for attempt in self.attempts if attempt.handler is not None)

    def guards_in(self, loop: Loop) -> tuple[Guard, ...]:
        """The conditions that are tested inside `loop`."""
        depth = self.loops.index(loop)
        return tuple(guard for guard in self.guards if guard.depth > depth)
