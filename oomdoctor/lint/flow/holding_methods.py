"""Methods that move tensors and keep them: of tensors, lists, dictionaries and what prepares them."""

from __future__ import annotations

import ast
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Act, Event, Keeping
from oomdoctor.lint.flow.joining import sources
from oomdoctor.lint.flow.state import NUMBER, Given, Method, State, base_of, text_of
from oomdoctor.lint.flow.values import UNKNOWN, Device, Graph, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Mapping


def _to_host(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    if owner.kind in (Kind.MODEL, Kind.NUMBER, Kind.ARRAY):
        return owner if owner.kind is Kind.MODEL else NUMBER
    state.note(Act.TO_HOST, node, owner, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    name = node.func.attr  # type: ignore[attr-defined]
    if name == "cpu":
        return owner.but(device=Device.CPU, node=node)
    kind = Kind.ARRAY if name == "numpy" else Kind.NUMBER
    return Value(kind=kind, graph=Graph.NO, device=Device.CPU, node=node, made_from=sources((owner,)))


def _to(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    text = text_of(node.args[0]) if node.args else ""
    if text in ('"cpu"', "'cpu'") or "torch.device('cpu')" in text:
        return _to_host_by_to(state, node, owner)
    if owner.kind is Kind.UNKNOWN or owner.kind is Kind.TENSOR:
        return owner.but(device=Device.GPU, node=node)
    return owner


def _to_host_by_to(state: State, node: ast.Call, owner: Value) -> Value:
    if owner.kind is not Kind.MODEL:
        state.note(Act.TO_HOST, node, owner, call=node, name=".to")
    return owner.but(device=Device.CPU)


def _detach(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del state, given
    if owner.kind is Kind.MODEL:
        return None
    return Value(
        kind=Kind.TENSOR,
        graph=Graph.NO,
        device=owner.device,
        node=node,
        made_from=sources((owner,)),
        divided_by=owner.divided_by,
    )


def _append(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    if owner.kind in (Kind.MODEL, Kind.TENSOR, Kind.ARRAY) or not given.positional:
        return None
    value = given.positional[-1]
    state.note_kept(node, value, _container_of(node), Keeping.APPEND)
    base = base_of(node.func.value)  # type: ignore[attr-defined]
    if base is not None:
        before = state.names.get(base, owner)
        state.names[base] = Value(
            kind=Kind.CONTAINER,
            graph=value.graph if before.graph is Graph.NO or before.graph is value.graph else Graph.UNKNOWN,
            device=value.device,
            node=before.node,
            made_from=sources((before, value)),
            is_loss=value.is_loss,
        )
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _container_of(node: ast.Call) -> ast.expr:
    """What is appended to: `log[key]` for `log[key].append(...)`, `log` for `log.setdefault(key, []).append(...)`."""
    holder: ast.expr = node.func.value  # type: ignore[attr-defined]
    if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute) and holder.func.attr == "setdefault":
        return holder.func.value
    return holder


def _clear(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    target = text_of(node.func.value)  # type: ignore[attr-defined]
    state.events.append(Event(Act.FORGET, node, state.module, state.context, owner, call=node, target=target))
    return UNKNOWN


def _prepare(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    """Of an accelerator or fabric: gives back what it was given, in the same order."""
    del state
    if owner.kind not in (Kind.ACCELERATOR, Kind.FABRIC) or not given.positional:
        return None
    if len(given.positional) == 1:
        return given.positional[0]
    return Value(kind=Kind.CONTAINER, graph=Graph.NO, node=node, parts=given.positional)


HOLDING: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "item": _to_host,
        "cpu": _to_host,
        "numpy": _to_host,
        "tolist": _to_host,
        "to": _to,
        "cuda": _to,
        "detach": _detach,
        "detach_": _detach,
        "append": _append,
        "appendleft": _append,
        "extend": _append,
        "add": _append,
        "put": _append,
        "insert": _append,
        "clear": _clear,
        "prepare": _prepare,
        "setup": _prepare,
        "setup_module": _prepare,
        "setup_optimizers": _prepare,
        "setup_dataloaders": _prepare,
    }
)
"""By the name of the method; None where it is not what its name says."""
