"""Where an abstract run stands: what names mean, under what circumstances, and what has happened so far."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from oomdoctor.lint.flow.context import Context, Gradients, Loop
from oomdoctor.lint.flow.events import Act, Event, Keeping
from oomdoctor.lint.flow.values import UNKNOWN, Graph, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.lint.code.functions import Class, Function, Module

MOST_STATEMENTS: Final = 6000
"""That one run looks at, followed calls among them: a bound on time for code that calls itself in circles."""
MOST_EVENTS: Final = 2000
"""Of one run, for the same reason: rules compare events with each other."""
MOST_FRAMES: Final = 6
"""Calls in one another that are followed."""

Names: TypeAlias = dict[str, Value]
Births: TypeAlias = dict[str, tuple[Loop, ...]]


class Follow(Protocol):
    """Runs a function's body as part of the run."""

    def __call__(self, state: State, function: Function, call: ast.Call | None, given: Given) -> Value:
        """Run it and give what it returns."""
        ...


class Call(Protocol):
    """Evaluates a call."""

    def __call__(self, state: State, node: ast.Call) -> Value:
        """Note what the call does, and give what it returns."""
        ...


Method: TypeAlias = "Callable[[State, ast.Call, Value, Given], Value | None]"
"""What a method of some name does, called on a value: gives what it returns, or None where it is not what it seems."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a call gives a function.

    Attributes:
        positional: Arguments by place, the object that a method is called on not among them.
        keywords: Arguments by name.
        receiver: The object that a method is called on.
    """

    positional: tuple[Value, ...] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    receiver: Value | None = None


@dataclass(slots=True)
class Shared:
    """What the runs of one file share.

    Attributes:
        used: Which telling methods the file calls on which texts.
        globals: What the names at the top level of a file mean.
        fields: What is known of a class's attributes, as `self.x`.
        entered: Functions that were followed at least once.
        followed: How often each was.
        silent: What functions returned in whose body nothing happened, by the kinds of what they were given.
        budget: Statements that the runs to come may look at.
    """

    used: Mapping[str, frozenset[str]] = field(default_factory=dict)
    globals: dict[Module, Names] = field(default_factory=dict)
    fields: dict[Class, Names] = field(default_factory=dict)
    entered: set[Function] = field(default_factory=set)
    followed: Counter[Function] = field(default_factory=Counter)
    silent: dict[tuple[object, ...], Value] = field(default_factory=dict)
    budget: int = MOST_STATEMENTS


@dataclass(slots=True)
class State:
    """One run under way.

    Attributes:
        module: The file whose code runs at the moment.
        follow: How a call is followed into a function.
        call: How a call is evaluated.
        names: What local names and dotted texts such as `self.optimizer` mean.
        context: The circumstances.
        events: What has happened.
        loops: Loops that were entered.
        born: For names and dotted texts, the loops around where they were last set outright.
        returned: Values that the function under way has returned so far.
        shared: What all runs of the file share.
        budget: Statements that may still be looked at.
    """

    module: Module
    follow: Follow
    call: Call
    names: Names = field(default_factory=dict)
    context: Context = field(default_factory=Context)
    events: list[Event] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    born: Births = field(default_factory=dict)
    returned: list[Value] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    budget: int = MOST_STATEMENTS

    def note(  # noqa: PLR0913 - one parameter a field
        self,
        act: Act,
        node: ast.expr | ast.stmt,
        value: Value = UNKNOWN,
        *,
        result: Value = UNKNOWN,
        call: ast.Call | None = None,
        name: str = "",
        managed: str | None = None,
    ) -> None:
        """Note that something happens here."""
        context = self.context if managed is None else self.context.but(managed=managed)
        self.events.append(Event(act, node, self.module, context, value, result, call, name))
        if len(self.events) >= MOST_EVENTS:
            self.budget = 0

    def note_kept(self, node: ast.expr | ast.stmt, value: Value, target: ast.expr | None, how: Keeping) -> None:
        """Note that a value is stored in something, and which loops that something outlives."""
        text = "" if target is None else text_of(target)
        base = None if target is None else base_of(target)
        before = UNKNOWN if base is None else self.names.get(base, UNKNOWN)
        event = Event(
            Act.KEEP,
            node,
            self.module,
            self.context,
            value,
            call=node if isinstance(node, ast.Call) else None,
            target=text,
            target_value=before,
            how=how,
            outlives=None if base is None else self.outlived_by(base),
        )
        self.events.append(event)

    def outlived_by(self, base: str) -> Loop | None:
        """The outermost loop around here that the thing of this name was there before."""
        born = self.born.get(base, ())
        for index, loop in enumerate(self.context.loops):
            if index >= len(born) or born[index] is not loop:
                return loop
        return None

    def bind(self, text: str, value: Value) -> None:
        """Set a name or a dotted text outright."""
        self.names[text] = value
        self.born[text] = self.context.loops

    @property
    def records(self) -> Graph:
        """Whether what is computed here hangs on a graph, if what it is computed from does."""
        return _RECORDS[self.context.gradients]

    def uses(self, text: str) -> frozenset[str]:
        """Names of the methods that the file calls on something of this text, anywhere."""
        return self.shared.used.get(text, frozenset())


_RECORDS: Final = {Gradients.ON: Graph.YES, Gradients.OFF: Graph.NO, Gradients.UNKNOWN: Graph.UNKNOWN}

NUMBER: Final = Value(kind=Kind.NUMBER, graph=Graph.NO, identity=-1)


def text_of(node: ast.expr) -> str:
    """The source text of a name or a dotted expression, quickly; of anything else as `ast` writes it."""
    if node.__class__ is ast.Name:
        return node.id
    if node.__class__ is ast.Attribute:
        return f"{text_of(node.value)}.{node.attr}"
    try:
        return ast.unparse(node)
    except RecursionError:
        return "..."


def base_of(node: ast.expr) -> str | None:
    """The name or dotted text of what holds an element: `self.totals` for `self.totals[key]`; None if it has none."""
    while node.__class__ is ast.Subscript:
        node = node.value
    if node.__class__ is ast.Name:
        return node.id
    if node.__class__ is ast.Attribute:
        inner = base_of(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None
