"""State of an abstract run: meanings of names, and how two branches join."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from oomdoctor.lint.flow.events import (
    UNKNOWN,
    Action,
    Context,
    Event,
    GradMode,
    Graph,
    Keeping,
    Kind,
    Loop,
    TensorDevice,
    Value,
)
from oomdoctor.lint.module import Class, Function, Module

MOST_STATEMENTS: Final = 6000
"""Statements that one run executes at most, followed calls included: a bound on time where code calls itself."""
MOST_EVENTS: Final = 2000
"""Events that one run records at most, for the same reason: rules compare events with each other."""
MOST_FRAMES: Final = 6
"""Calls in one another that are followed."""

Names: TypeAlias = dict[str, Value]
SettingLoops: TypeAlias = dict[str, tuple[Loop, ...]]


class Follow(Protocol):
    """Runs a function's body as part of the run."""

    def __call__(self, state: State, function: Function, call: ast.Call | None, given: Arguments) -> Value:
        """Run it and give what it returns."""
        ...


class Call(Protocol):
    """Evaluates a call."""

    def __call__(self, state: State, node: ast.Call) -> Value:
        """Note what the call does, and give what it returns."""
        ...


Method: TypeAlias = "Callable[[State, ast.Call, Value, Arguments], Value | None]"
"""Effect of a method by its name: returns the result, or None where the owner is not of the expected kind."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call.

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
    """The state that all runs of one file share.

    Attributes:
        used: Relevant methods that the file calls, by text.
        globals: Meanings of names at the top level of a file.
        fields: Values of a class's attributes, as `self.x`.
        entered: Functions that were followed at least once.
        followed: Number of times that each function was followed.
        silent: Results of functions in whose body nothing happened, by the kinds of their arguments.
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
    """The state of a run.

    Attributes:
        module: The file whose code runs at the moment.
        follow: Follows a call into a function.
        call: Evaluates a call.
        names: Meanings of local names and of dotted texts such as `self.optimizer`.
        context: The circumstances.
        events: Events so far.
        loops: Loops that were entered.
        set_in: For names and dotted texts, the loops around where they were last set outright.
        returned: Values that the function under way has returned so far.
        shared: State that all runs of the file share.
        budget: Statements that may still be looked at.
    """

    module: Module
    follow: Follow
    call: Call
    names: Names = field(default_factory=dict)
    context: Context = field(default_factory=Context)
    events: list[Event] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    set_in: SettingLoops = field(default_factory=dict)
    returned: list[Value] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    budget: int = MOST_STATEMENTS

    def note(  # noqa: PLR0913 - one parameter a field
        self,
        action: Action,
        node: ast.expr | ast.stmt,
        value: Value = UNKNOWN,
        *,
        result: Value = UNKNOWN,
        call: ast.Call | None = None,
        name: str = "",
        managed: str | None = None,
    ) -> None:
        """Note that something happens here."""
        context = self.context if managed is None else self.context.replace(managed=managed)
        self.events.append(Event(action, node, self.module, context, value, result, call, name))
        if len(self.events) >= MOST_EVENTS:
            self.budget = 0

    def note_kept(self, node: ast.expr | ast.stmt, value: Value, target: ast.expr | None, how: Keeping) -> None:
        """Note that a value is stored in something, and which loops that something outlives."""
        text = "" if target is None else text_of(target)
        base = None if target is None else base_of(target)
        before = UNKNOWN if base is None else self.names.get(base, UNKNOWN)
        event = Event(
            Action.KEEP,
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
        set_in = self.set_in.get(base, ())
        for index, loop in enumerate(self.context.loops):
            if index >= len(set_in) or set_in[index] is not loop:
                return loop
        return None

    def bind(self, text: str, value: Value) -> None:
        """Set a name or a dotted text outright."""
        self.names[text] = value
        self.set_in[text] = self.context.loops

    @property
    def records(self) -> Graph:
        """State of the graph of a result whose operands hang on a graph."""
        return _RECORDS[self.context.gradients]

    def uses(self, text: str) -> frozenset[str]:
        """Names of the methods that the file calls on something of this text, anywhere."""
        return self.shared.used.get(text, frozenset())


_RECORDS: Final = {GradMode.ON: Graph.YES, GradMode.OFF: Graph.NO, GradMode.UNKNOWN: Graph.UNKNOWN}

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


_MOST_SOURCES: Final = 256
_TENSORS: Final = frozenset({Kind.TENSOR, Kind.UNKNOWN, Kind.CONTAINER, Kind.CHECKPOINT})


def join(first: Value, second: Value) -> Value:
    """Return the knowledge about a value that is one or the other."""
    if first is second or first.identity == second.identity:
        return first
    if first is UNKNOWN or second is UNKNOWN:
        return UNKNOWN
    if first.kind is Kind.NONE:  # `optimizer = None` before the branch that makes it
        return second
    if second.kind is Kind.NONE:
        return first
    return Value(
        kind=first.kind if first.kind is second.kind else Kind.UNKNOWN,
        graph=first.graph if first.graph is second.graph else Graph.UNKNOWN,
        device=first.device if first.device is second.device else TensorDevice.UNKNOWN,
        node=first.node if first.node is second.node else None,
        made_from=sources((first, second)),
        divided_by=tuple(dict.fromkeys(first.divided_by + second.divided_by)),
        parts=_join_parts(first, second),
        function=first.function if first.function is second.function else None,
        class_=first.class_ if first.class_ is second.class_ else None,
        receiver=first.receiver if first.receiver is second.receiver else None,
        library=first.library if first.library == second.library else None,
        wrapped=first.wrapped or second.wrapped,
        is_loss=first.is_loss or second.is_loss,
        activation=first.activation if first.activation == second.activation else None,
    )


def _join_parts(first: Value, second: Value) -> tuple[Value, ...]:
    if len(first.parts) != len(second.parts):
        return ()
    return tuple(join(one, other) for one, other in zip(first.parts, second.parts, strict=True))


def join_names(first: Names, second: Names) -> Names:
    """Return the meanings of names after two branches; a name that only one of them sets keeps that meaning."""
    if first is second:
        return first
    joined = dict(first)
    for name, value in second.items():
        other = first.get(name)
        if other is not value:
            joined[name] = value if other is None else join(other, value)
    return joined


def sources(values: Iterable[Value]) -> frozenset[int]:
    """Identities of all that these values were computed from, their own among them."""
    found: set[int] = set()
    for value in values:
        if value.identity > 0:
            found.add(value.identity)
        found |= value.made_from
    return frozenset(found) if len(found) <= _MOST_SOURCES else frozenset()


def graph_of(values: Iterable[Value], records: Graph) -> Graph:
    """Return whether the result of a computation with these operands hangs on a graph.

    Args:
        values: Operands.
        records: YES where autograd records, NO where not.
    """
    if records is Graph.NO:
        return Graph.NO
    graphs = {value.graph for value in values if value.kind is not Kind.NUMBER}
    if Graph.YES in graphs:
        return records
    return Graph.UNKNOWN if Graph.UNKNOWN in graphs else Graph.NO


def computed_value(node: ast.expr, values: tuple[Value, ...], records: Graph) -> Value:
    """A tensor, or a number, that is computed from these values."""
    graph = graph_of(values, records)
    if all(value.kind is Kind.NUMBER for value in values):
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources(values))
    known: set[Kind] = {value.kind for value in values if value.kind is not Kind.NUMBER}
    devices = {value.device for value in values if value.kind is not Kind.NUMBER}
    return Value(
        kind=known.pop()
        if len(known) == 1 and known <= {Kind.TENSOR, Kind.ARRAY}
        else (Kind.TENSOR if Kind.TENSOR in known and known <= _TENSORS else Kind.UNKNOWN),
        graph=graph,
        device=devices.pop() if len(devices) == 1 else TensorDevice.UNKNOWN,
        node=node,
        made_from=sources(values),
        divided_by=tuple(dict.fromkeys(text for value in values for text in value.divided_by)),
        is_loss=any(value.is_loss for value in values),
    )
