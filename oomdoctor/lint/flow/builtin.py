"""What Python's own functions do and give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.joining import computed, graph_of, sources
from oomdoctor.lint.flow.state import NUMBER, Given, State
from oomdoctor.lint.flow.values import UNKNOWN, Device, Graph, Kind, Value

if TYPE_CHECKING:
    import ast

_TO_NUMBERS: Final = frozenset({"float", "int", "bool", "str", "complex"})
_NUMBERS: Final = frozenset(
    {
        "len",
        "print",
        "isinstance",
        "issubclass",
        "hasattr",
        "repr",
        "type",
        "id",
        "hash",
        "format",
        "range",
        "callable",
        "open",
        "input",
        "ord",
        "chr",
        "hex",
    }
)
_CONTAINERS: Final = frozenset(
    {
        "list",
        "tuple",
        "set",
        "frozenset",
        "dict",
        "sorted",
        "reversed",
        "iter",
        "enumerate",
        "zip",
        "filter",
        "defaultdict",
        "deque",
        "OrderedDict",
        "Counter",
    }
)
_COMPUTE: Final = frozenset({"sum", "max", "min", "abs", "pow", "round", "divmod"})
BUILTINS: Final = _TO_NUMBERS | _NUMBERS | _CONTAINERS | _COMPUTE | {"next", "getattr", "map"}


def call_builtin(state: State, node: ast.Call, name: str, given: Given) -> Value:
    """Note what a call of one of Python's functions does, and give what it returns."""
    values = given.positional
    if name in _NUMBERS:
        return NUMBER
    if name in _TO_NUMBERS:
        if values and values[0].kind is not Kind.NUMBER:
            state.note(Act.TO_HOST, node, values[0], call=node, name=name)
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources(values))
    if name == "next":
        state.note(Act.NEXT, node, values[0] if values else UNKNOWN, call=node, name=name)
        return Value(graph=Graph.NO, node=node)
    if name in _COMPUTE:
        return computed(node, values, state.records)
    if name in _CONTAINERS:
        return _container(node, name, values)
    return Value(node=node, made_from=sources(values))


def _container(node: ast.Call, name: str, values: tuple[Value, ...]) -> Value:
    if name in ("enumerate", "iter", "reversed") and values:
        return values[0]
    first = values[0] if values else None
    return Value(
        kind=Kind.LOADER if first is not None and first.kind is Kind.LOADER and name == "zip" else Kind.CONTAINER,
        graph=graph_of(values, Graph.YES) if values else Graph.NO,
        device=first.device if first is not None else Device.UNKNOWN,
        node=node,
        made_from=sources(values),
        parts=first.parts if first is not None and name in ("list", "tuple") else (),
    )
