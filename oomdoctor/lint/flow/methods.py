"""What a call of a method does and gives, by the method's name and by what it is called on."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.holding_methods import HOLDING
from oomdoctor.lint.flow.joining import computed, sources
from oomdoctor.lint.flow.state import Given, Method, State, text_of
from oomdoctor.lint.flow.training_methods import TRAINING
from oomdoctor.lint.flow.values import Device, Graph, Kind, Value

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

_METHODS: Final[Mapping[str, Method]] = MappingProxyType({**TRAINING, **HOLDING})


def call_method(state: State, node: ast.Call, owner: Value, given: Given) -> Value:
    """Note what a call of a method does that nobody here can follow, and give what it returns.

    Args:
        state: The run.
        node: The call; its function is an attribute.
        owner: What the method is called on.
        given: Its arguments.
    """
    name = node.func.attr  # type: ignore[attr-defined]
    method = _METHODS.get(name)
    value = None if method is None else method(state, node, owner, given)
    if value is not None:
        return value
    if owner.kind is Kind.MODEL:
        return _of_model(state, node, owner, given)
    return _plain(state, node, owner, given)


def forward(state: State, node: ast.Call, model: Value, given: Given) -> Value:
    """Note a forward pass, and give the model's output."""
    result = Value(
        kind=Kind.TENSOR,
        graph=state.records,
        device=Device.GPU,
        node=node,
        made_from=sources((*given.positional, *given.keywords.values())),
    )
    state.note(Act.FORWARD, node, model, result=result, call=node)
    return result


def loss(state: State, node: ast.Call, given: Given) -> Value:
    """Give the loss that a loss function makes of its arguments."""
    value = computed(node, (*given.positional, *given.keywords.values()), state.records)
    return value.but(kind=Kind.TENSOR, is_loss=True)


def _of_model(state: State, node: ast.Call, owner: Value, given: Given) -> Value:
    name = node.func.attr  # type: ignore[attr-defined]
    if name in known.FORWARD_METHODS or known.IS_FORWARD_METHOD.match(name):
        return forward(state, node, owner, given)
    if name in known.GRADIENTLESS_FORWARDS:
        return Value(kind=Kind.TENSOR, graph=Graph.NO, device=Device.GPU, node=node)
    if name in known.SAME_METHODS:
        return owner
    return Value(node=node, made_from=sources(given.positional))


def _plain(state: State, node: ast.Call, owner: Value, given: Given) -> Value:
    """A method without an event: of a tensor it mostly gives another tensor on the same graph."""
    name = node.func.attr  # type: ignore[attr-defined]
    if name in known.NUMBER_METHODS:
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources((owner,)))
    if owner.kind is Kind.TENSOR or owner.graph is Graph.YES:
        value = computed(node, (owner, *given.positional), state.records)
        if name in ("div", "div_", "true_divide") and node.args:
            value = value.but(divided_by=(*value.divided_by, text_of(node.args[0])))
        return value.but(graph=Graph.NO) if name in known.GRAPHLESS_METHODS else value
    if owner.kind is Kind.ARRAY:
        return Value(kind=Kind.ARRAY, graph=Graph.NO, node=node)
    if name in known.GRAPHLESS_METHODS:
        return Value(graph=Graph.NO, node=node, made_from=sources((owner,)))
    return Value(node=node, made_from=sources((owner, *given.positional)), divided_by=owner.divided_by)
