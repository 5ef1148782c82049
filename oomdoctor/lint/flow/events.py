"""Values, circumstances and events: the vocabulary of an abstract run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from oomdoctor.lint.module import Class, Function, Module

_numbers = count(1)


class Kind(StrEnum):
    """The role of a value in training."""

    UNKNOWN = "unknown"
    MODEL = "model"  # a torch module that is trained or evaluated
    LOSS_FUNCTION = "loss function"  # a criterion: called on outputs, gives a loss
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"  # torch.amp.GradScaler
    LOADER = "loader"  # gives batches
    ACCELERATOR = "accelerator"  # accelerate.Accelerator
    FABRIC = "fabric"  # lightning.Fabric
    ENGINE = "engine"  # a DeepSpeed engine
    TRAINER = "trainer"  # a trainer that runs the loop itself
    TENSOR = "tensor"
    CONTAINER = "container"  # a list, a dict, a tuple; `parts` are the values of a tuple that is written out
    NUMBER = "number"  # of Python, or text: holds no tensor
    ARRAY = "array"  # of NumPy: holds no tensor
    CHECKPOINT = "checkpoint"  # what torch.load gave, or a part of it
    FUNCTION = "function"  # `function` says which
    CLASS = "class"  # `class_` says which
    NONE = "none"


class Graph(StrEnum):
    """State of a tensor's graph, which autograd keeps for a backward pass."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class TensorDevice(StrEnum):
    """The device of a tensor."""

    GPU = "gpu"  # or wherever the model is
    CPU = "cpu"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The knowledge about one value.

    Attributes:
        kind: Role of the value.
        graph: Whether it keeps a graph alive; YES is only said where it is sure.
        device: Device of a tensor.
        node: The expression that made it; None where that is not known.
        identity: A number that two values share only if they are one value.
        made_from: Identities of the values that it was computed from, its own among them.
        divided_by: Source texts of what it was divided by on the way, such as `args.accumulation_steps`.
        parts: Values of a tuple, a list or a dictionary that is written out.
        function: The function, for FUNCTION.
        class_: Class of the repository, for CLASS and for its objects.
        receiver: For a method taken from an object, that object.
        library: Qualified name of the library's class or function that made it, such as `torch.optim.AdamW`.
        wrapped: Whether it is a model under DistributedDataParallel or FullyShardedDataParallel.
        is_loss: Whether it was made by a loss function, read from `.loss`, or is what backward is called on.
        activation: What was applied last to a tensor: `softmax`, `sigmoid` and the like, or `linear` for a layer's own
            output; None where that is not known.
    """

    kind: Kind = Kind.UNKNOWN
    graph: Graph = Graph.UNKNOWN
    device: TensorDevice = TensorDevice.UNKNOWN
    node: ast.expr | None = None
    identity: int = field(default_factory=lambda: next(_numbers))
    made_from: frozenset[int] = frozenset()
    divided_by: tuple[str, ...] = ()
    parts: tuple[Value, ...] = ()
    function: Function | None = None
    class_: Class | None = None
    receiver: Value | None = None
    library: str | None = None
    wrapped: bool = False
    is_loss: bool = False
    activation: str | None = None

    def comes_from(self, other: Value) -> bool:
        """Return whether this value is `other` or was computed from it."""
        return self.identity == other.identity or other.identity in self.made_from

    def replace(self, **changes: object) -> Value:
        """Return the same value with more known about it."""
        return replace(self, **changes)  # type: ignore[arg-type]


UNKNOWN = Value(identity=0)
"""A value of which nothing is known. It is not one value: `comes_from` means nothing for it."""


class GradMode(StrEnum):
    """Autograd's recording mode."""

    ON = "on"
    OFF = "off"  # no_grad, inference_mode, set_grad_enabled(False), or a framework that does it
    UNKNOWN = "unknown"  # set_grad_enabled(flag), or a decorator or context manager that nobody here knows


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A `for`, a `while` or a comprehension; each is one object, compared by identity.

    Attributes:
        node: The statement or the comprehension.
        iterates: Iterable of a `for`, without `enumerate`, `tqdm`, `zip` and their like around it.
        counter: Name of the variable that counts iterations: of `enumerate` or of `for i in range(...)`.
        start: First value of `counter`; None where that is not a literal number.
        over_batches: Whether an iteration takes a batch: it goes over a loader, or draws from one with `next`.
        function: The function whose body has it; None at the top of a module.
        values: Meanings of names just before the loop.
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
        values: Meanings of names at the test; a name that stands for a condition leads to its `node`.
        left_by: `continue`, `break`, `return` or `raise`: how those left for whom it was the other way; None in an
            `if` around the line.
        depth: Number of loops around the test.
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
class TryBlock:
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
class FollowedCall:
    """A call that was followed into the function's body.

    Attributes:
        function: The function that is called.
        call: The call; None for the function with which the run begins.
    """

    function: Function
    call: ast.Call | None


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of a line. Each tuple is outermost first and goes through all calls that were followed.

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
    attempts: tuple[TryBlock, ...] = ()
    frames: tuple[FollowedCall, ...] = ()
    gradients: GradMode = GradMode.ON
    managed: str | None = None

    def replace(self, **changes: object) -> Context:
        """Return the same circumstances with these changes."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def handlers(self) -> tuple[ast.ExceptHandler, ...]:
        """The exception handlers around the line, outermost first."""
        return tuple(attempt.handler for attempt in self.attempts if attempt.handler is not None)

    def guards_in(self, loop: Loop) -> tuple[Guard, ...]:
        """The conditions that are tested inside `loop`."""
        depth = self.loops.index(loop)
        return tuple(guard for guard in self.guards if guard.depth > depth)


class Action(StrEnum):
    """The kind of an event; the comment beside each says what `value` and `result` are."""

    FORWARD = "forward"  # a model is called; value: the model, result: its output
    BACKWARD = "backward"  # value: the loss, whoever makes the pass (`loss.backward()`, `accelerator.backward(loss)`)
    AUTOGRAD = "autograd"  # torch.autograd.grad, functional.jacobian and their like; value: the first argument
    LOSS = "loss"  # a loss function is called; value: its first argument, result: the loss; `name`: the function
    STEP = "step"  # of an optimizer, through a scaler too; value: the optimizer
    ZERO_GRAD = "zero_grad"  # value: the optimizer or the model
    CLIP = "clip"  # of gradients, by norm or value
    UNSCALE = "unscale"  # scaler.unscale_(optimizer)
    SCALER_UPDATE = "scaler_update"  # scaler.update()
    SCHEDULE = "schedule"  # scheduler.step(); value: the scheduler
    TRAIN_MODE = "train_mode"  # model.train(); value: the model
    EVAL_MODE = "eval_mode"  # model.eval() or model.train(False); value: the model
    LOAD = "load"  # torch.load; result: the checkpoint
    LOAD_STATE = "load_state"  # x.load_state_dict(value); value: what is loaded
    EMPTY_CACHE = "empty_cache"  # torch.cuda.empty_cache()
    KEEP = "keep"  # value is stored where it outlives the iteration or the statement; see `target`
    FORGET = "forget"  # `del x`, `xs.clear()`, `x = None`, or a kept total that is set anew; see `target`
    COLLECT = "collect"  # torch.cat or torch.stack; value: the container that is given
    TO_HOST = "to_host"  # .cpu(), .item(), .numpy(), .tolist(), .to("cpu"); value: the tensor
    CALL = "call"  # a call of a library's function by a qualified name that has no event of its own; `name` has it
    NEXT = "next"  # a batch is drawn with next(); value: the iterator
    FREEZE = "freeze"  # requires_grad_(False), or `.requires_grad = False`; value: the model, tensor or parameter
    NEEDS_GRADIENT = "needs_gradient"  # the like with True: an input is to get a gradient; value: the tensor


class Keeping(StrEnum):
    """The way in which a value is kept."""

    SUM = "sum"  # total += value, total = total + value
    APPEND = "append"  # list.append(value), list += [value], list.extend(...), queue.put(value)
    ITEM = "item"  # mapping[key] = value
    ITEM_SUM = "item sum"  # mapping[key] += value
    ATTRIBUTE = "attribute"  # thing.name = value
    YIELD = "yield"  # a comprehension or a generator's element


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run.

    Attributes:
        action: The kind of event.
        node: The call or the statement to point at.
        module: The file that `node` lies in; a run that follows a call may leave the file it began in.
        context: Under what circumstances.
        value: Value that the action is about; see `Action`.
        result: Result of the action.
        call: The call, where it is one; its keywords are there to read.
        name: Qualified name of what is called, such as `torch.nn.utils.clip_grad_norm_`, or `.` and a method's name.
        target: For KEEP and FORGET: source text of what it is kept in, such as `self.losses` or `total`.
        target_value: For KEEP: what was known of the target before.
        how: For KEEP.
        outlives: For KEEP: the outermost loop that the target was there before, so that each iteration of it adds to
            what is kept; None where the target is made anew in each iteration or there is no loop.
    """

    action: Action
    node: ast.expr | ast.stmt
    module: Module
    context: Context
    value: Value = UNKNOWN
    result: Value = UNKNOWN
    call: ast.Call | None = None
    name: str = ""
    target: str = ""
    target_value: Value = UNKNOWN
    how: Keeping | None = None
    outlives: Loop | None = None

    @property
    def loop(self) -> Loop | None:
        """The innermost loop around it."""
        return self.context.loops[-1] if self.context.loops else None

    @property
    def function(self) -> Function | None:
        """The function whose body it lies in; None at the top of a module."""
        return self.context.frames[-1].function if self.context.frames else None

    def keyword(self, name: str) -> ast.expr | None:
        """The argument that the call gives by this name."""
        if self.call is None:
            return None
        return next((keyword.value for keyword in self.call.keywords if keyword.arg == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The events from one entry on: a module's top level, or a function that nobody in the repository calls.

    Attributes:
        module: The file in which it begins.
        function: The function with which it begins; None for the module's top level.
        events: Events in the order of the program. Both branches of an `if` follow each other; guards tell them apart.
        loops: Every loop that was entered, in the same order.
        training: The loops whose iteration takes one micro-batch, in the order of their backward passes.
    """

    module: Module
    function: Function | None
    events: tuple[Event, ...]
    loops: tuple[Loop, ...]
    training: tuple[Loop, ...] = ()

    def of(self, *actions: Action, within: Loop | None = None) -> Iterator[Event]:
        """Yield the events of these kinds, in order.

        Args:
            actions: The kinds; all of them where none is given.
            within: Only those with this loop around them, at whatever depth.
        """
        for event in self.events:
            if (not actions or event.action in actions) and (within is None or within in event.context.loops):
                yield event

    def training_loops(self) -> Iterator[Loop]:
        """The loops whose iteration takes one micro-batch."""
        return iter(self.training)


def training_loops(events: Iterable[Event]) -> tuple[Loop, ...]:
    """The innermost loop that takes batches around each backward pass; else the innermost one around it."""
    found: dict[Loop, None] = {}
    for event in events:
        loops = event.context.loops
        if event.action is Action.BACKWARD and loops:
            found[next((loop for loop in reversed(loops) if loop.over_batches), loops[-1])] = None
    return tuple(found)


def model_origins(run: Run, model: Value) -> Iterator[Value]:
    """The model as it is used, and as the run has seen it being made: DistributedDataParallel hides the library."""
    yield model
    for event in run.of(Action.CALL):
        if event.result.identity == model.identity and event.result.library != model.library:
            yield event.result
