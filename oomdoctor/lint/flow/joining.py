"""What is known where two ways through the code meet, and of what is computed from several values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.values import UNKNOWN, Device, Graph, Kind, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable

    from oomdoctor.lint.flow.state import Names

_MOST_SOURCES: Final = 256
_TENSORS: Final = frozenset({Kind.TENSOR, Kind.UNKNOWN, Kind.CONTAINER, Kind.CHECKPOINT})


def join(first: Value, second: Value) -> Value:
    """What holds of a value that is one or the other."""
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
        device=first.device if first.device is second.device else Device.UNKNOWN,
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
    )


def _join_parts(first: Value, second: Value) -> tuple[Value, ...]:
    if len(first.parts) != len(second.parts):
        return ()
    return tuple(join(one, other) for one, other in zip(first.parts, second.parts, strict=True))


def join_names(first: Names, second: Names) -> Names:
    """What names mean after two branches; a name that only one of them sets keeps that meaning."""
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
    """Whether what is computed from these values hangs on a graph.

    Args:
        values: What goes in.
        records: YES where autograd records, NO where not.
    """
    if records is Graph.NO:
        return Graph.NO
    graphs = {value.graph for value in values if value.kind is not Kind.NUMBER}
    if Graph.YES in graphs:
        return records
    return Graph.UNKNOWN if Graph.UNKNOWN in graphs else Graph.NO


def computed(node: ast.expr, values: tuple[Value, ...], records: Graph) -> Value:
    """A tensor, or a number, that is computed from these values."""
    graph = graph_of(values, records)
    if all(value.kind is Kind.NUMBER for value in values):
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources(values))
    known: set[Kind] = {value.kind for value in values if value.kind is not Kind.NUMBER}
    devices = {value.device for value in values if value.kind is not Kind.NUMBER}
    return Value(
        kind=known.pop() if len(known) == 1 and known <= {Kind.TENSOR, Kind.ARRAY} else _tensor_of(known),
        graph=graph,
        device=devices.pop() if len(devices) == 1 else Device.UNKNOWN,
        node=node,
        made_from=sources(values),
        divided_by=tuple(dict.fromkeys(text for value in values for text in value.divided_by)),
        is_loss=any(value.is_loss for value in values),
    )


def _tensor_of(kinds: set[Kind]) -> Kind:
    return Kind.TENSOR if Kind.TENSOR in kinds and kinds <= _TENSORS else Kind.UNKNOWN
