"""Methods by which training goes on: of losses, optimizers, schedulers, scalers, models and frameworks."""

from __future__ import annotations

import ast
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.libraries import note_backward
from oomdoctor.lint.flow.state import Given, Method, State, base_of, text_of
from oomdoctor.lint.flow.values import UNKNOWN, Graph, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

_MANAGERS: Final = frozenset({Kind.ACCELERATOR, Kind.FABRIC, Kind.ENGINE, Kind.TRAINER})


def _backward(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    argument = given.positional[0] if given.positional else given.keywords.get("loss")
    if owner.kind in _MANAGERS or (argument is not None and _takes_loss(node, owner, argument)):
        managed = "deepspeed" if owner.kind is Kind.ENGINE else None
        return note_backward(state, node, argument or UNKNOWN, managed=managed, name=".backward")
    # It is no sure tensor for that: a helper may give a plain number now and then, and its caller skip those.
    value = owner.but(graph=state.records, is_loss=True)
    text = base_of(node.func.value)  # type: ignore[attr-defined]
    if text is not None and text in state.names and isinstance(node.func.value, ast.Name):  # type: ignore[attr-defined]
        state.names[text] = value
    return note_backward(state, node, value, name=".backward")


def _takes_loss(node: ast.Call, owner: Value, argument: Value) -> bool:
    """Whether `x.backward(y)` is a pass of `y`, as of a strategy; in `loss.backward(gradient)` it is of `x`."""
    if owner.graph is Graph.YES or owner.is_loss:
        return False
    first = node.args[0] if node.args else None
    named = first is not None and known.IS_LOSS_NAME.search(text_of(first).rpartition(".")[2])
    return argument.is_loss or argument.graph is Graph.YES or bool(named)


def _manual_backward(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del owner
    return note_backward(state, node, given.positional[0] if given.positional else UNKNOWN, name=".manual_backward")


def _step(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    if owner.kind is Kind.SCHEDULER:
        state.note(Act.SCHEDULE, node, owner, call=node, name=".step")
    elif owner.kind is Kind.SCALER:
        state.note(Act.STEP, node, given.positional[0] if given.positional else UNKNOWN, call=node, name=".step")
    elif owner.kind is Kind.ENGINE:
        state.note(Act.STEP, node, owner, call=node, name=".step", managed="deepspeed")
    elif owner.kind is Kind.OPTIMIZER:
        state.note(Act.STEP, node, owner, call=node, name=".step")
    else:
        return None
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _optimizer_step(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    """Of torch_xla: `xm.optimizer_step(optimizer)`."""
    del owner
    if not given.positional:
        return None
    state.note(Act.STEP, node, given.positional[0], call=node, name=".optimizer_step")
    return UNKNOWN


def _zero_grad(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    managed = "deepspeed" if owner.kind is Kind.ENGINE else None
    state.note(Act.ZERO_GRAD, node, owner, call=node, name=".zero_grad", managed=managed)
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _clip(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    """Of an accelerator, an engine, fabric, FSDP, or Lightning's `self.clip_gradients`."""
    del given
    state.note(Act.CLIP, node, owner, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    return UNKNOWN


def _unscale(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del owner
    value = given.positional[0] if given.positional else UNKNOWN
    state.note(Act.UNSCALE, node, value, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    return UNKNOWN


def _update(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    if owner.kind is Kind.SCALER:
        state.note(Act.SCALER_UPDATE, node, owner, call=node, name=".update")
        return UNKNOWN
    if owner.kind is Kind.CONTAINER and given.positional:
        state.note_kept(node, given.positional[0], node.func.value, Keeping.ITEM)  # type: ignore[attr-defined]
        return UNKNOWN
    return None


def _scale(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del state
    if owner.kind is Kind.SCALER and given.positional:
        value = given.positional[0]
        return value.but(node=node)
    return None


def _eval(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    if given.positional or given.keywords or owner.kind in (Kind.ARRAY, Kind.NUMBER):  # `df.eval("a + b")`
        return None
    owner = _as_model(state, node, owner)
    state.note(Act.EVAL_MODE, node, owner, call=node, name=".eval")
    return owner


def _as_model(state: State, node: ast.Call, owner: Value) -> Value:
    """What `eval()` is called on is a model from there on."""
    holder = node.func.value  # type: ignore[attr-defined]
    if owner.kind is not Kind.UNKNOWN:
        return owner
    model = owner.but(kind=Kind.MODEL)
    if isinstance(holder, ast.Name | ast.Attribute):
        state.names[text_of(holder)] = model
    return model


def _train(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    if owner.kind is Kind.UNKNOWN and _is_false(node):
        owner = _as_model(state, node, owner)
    if owner.kind is not Kind.MODEL:
        return None
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    flag = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else True
    if arguments and not isinstance(arguments[0], ast.Constant):
        return owner
    state.note(Act.TRAIN_MODE if flag else Act.EVAL_MODE, node, owner, call=node, name=".train")
    return owner


def _is_false(node: ast.Call) -> bool:
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value is False


def _load_state_dict(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    value = given.positional[0] if given.positional else next(iter(given.keywords.values()), UNKNOWN)
    state.note(Act.LOAD_STATE, node, value, call=node, name=".load_state_dict", result=owner)
    return UNKNOWN


def _requires_grad(state: State, node: ast.Call, owner: Value, given: Given) -> Value | None:
    del given
    flag = node.args[0] if node.args else next((keyword.value for keyword in node.keywords), None)
    is_off = isinstance(flag, ast.Constant) and flag.value is False
    state.note(Act.FREEZE if is_off else Act.NEEDS_GRADIENT, node, owner, call=node, name=".requires_grad_")
    return owner


TRAINING: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "backward": _backward,
        "manual_backward": _manual_backward,
        "step": _step,
        "optimizer_step": _optimizer_step,
        "zero_grad": _zero_grad,
        "clip_grad_norm_": _clip,
        "clip_grad_value_": _clip,
        "clip_gradients": _clip,
        "unscale_": _unscale,
        "unscale_gradients": _unscale,
        "update": _update,
        "scale": _scale,
        "eval": _eval,
        "train": _train,
        "load_state_dict": _load_state_dict,
        "requires_grad_": _requires_grad,
    }
)
"""By the name of the method; None where it is not what its name says."""
