"""Calls of methods: of models, losses, optimizers, schedulers, scalers, tensors and containers."""

# ruff: noqa: ARG001 - each method is given what any of them needs

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import UNKNOWN, Action, Event, Graph, Keeping, Kind, TensorDevice, Value
from oomdoctor.lint.flow.libraries import note_backward
from oomdoctor.lint.flow.state import NUMBER, Arguments, Method, State, base_of, computed_value, sources, text_of

_MANAGERS: Final = frozenset({Kind.ACCELERATOR, Kind.FABRIC, Kind.ENGINE, Kind.TRAINER})


def _backward(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    argument = given.positional[0] if given.positional else given.keywords.get("loss")
    if owner.kind in _MANAGERS or (argument is not None and _takes_loss(node, owner, argument)):
        managed = "deepspeed" if owner.kind is Kind.ENGINE else None
        return note_backward(state, node, argument or UNKNOWN, managed=managed, name=".backward")
    # It is no sure tensor for that: a helper may give a plain number now and then, and its caller skip those.
    value = owner.replace(graph=state.records, is_loss=True)
    text = base_of(node.func.value)  # type: ignore[attr-defined]
    if text is not None and text in state.names and isinstance(node.func.value, ast.Name):  # type: ignore[attr-defined]
        state.names[text] = value
    return note_backward(state, node, value, name=".backward")


def _takes_loss(node: ast.Call, owner: Value, argument: Value) -> bool:
    """Return whether `x.backward(y)` is a pass of `y`, as of a strategy; in `loss.backward(gradient)` it is of `x`."""
    if owner.graph is Graph.YES or owner.is_loss:
        return False
    first = node.args[0] if node.args else None
    named = first is not None and known.IS_LOSS_NAME.search(text_of(first).rpartition(".")[2])
    return argument.is_loss or argument.graph is Graph.YES or bool(named)


def _manual_backward(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    return note_backward(state, node, given.positional[0] if given.positional else UNKNOWN, name=".manual_backward")


def _step(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if owner.kind is Kind.SCHEDULER:
        state.note(Action.SCHEDULE, node, owner, call=node, name=".step")
    elif owner.kind is Kind.SCALER:
        state.note(Action.STEP, node, given.positional[0] if given.positional else UNKNOWN, call=node, name=".step")
    elif owner.kind is Kind.ENGINE:
        state.note(Action.STEP, node, owner, call=node, name=".step", managed="deepspeed")
    elif owner.kind is Kind.OPTIMIZER:
        state.note(Action.STEP, node, owner, call=node, name=".step")
    else:
        return None
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _optimizer_step(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    """Record a step of torch_xla: `xm.optimizer_step(optimizer)`."""
    if not given.positional:
        return None
    state.note(Action.STEP, node, given.positional[0], call=node, name=".optimizer_step")
    return UNKNOWN


def _zero_grad(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    managed = "deepspeed" if owner.kind is Kind.ENGINE else None
    state.note(Action.ZERO_GRAD, node, owner, call=node, name=".zero_grad", managed=managed)
    return Value(kind=Kind.NONE, graph=Graph.NO, node=node)


def _clip(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    """Record a clipping by an accelerator, an engine, fabric, FSDP, or Lightning's `self.clip_gradients`."""
    state.note(Action.CLIP, node, owner, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    return UNKNOWN


def _unscale(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    value = given.positional[0] if given.positional else UNKNOWN
    state.note(Action.UNSCALE, node, value, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    return UNKNOWN


def _update(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if owner.kind is Kind.SCALER:
        state.note(Action.SCALER_UPDATE, node, owner, call=node, name=".update")
        return UNKNOWN
    if owner.kind is Kind.CONTAINER and given.positional:
        state.note_kept(node, given.positional[0], node.func.value, Keeping.ITEM)  # type: ignore[attr-defined]
        return UNKNOWN
    return None


def _scale(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if owner.kind is Kind.SCALER and given.positional:
        value = given.positional[0]
        return value.replace(node=node)
    return None


def _eval(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if given.positional or given.keywords or owner.kind in (Kind.ARRAY, Kind.NUMBER):  # `df.eval("a + b")`
        return None
    owner = _as_model(state, node, owner)
    state.note(Action.EVAL_MODE, node, owner, call=node, name=".eval")
    return owner


def _as_model(state: State, node: ast.Call, owner: Value) -> Value:
    """Treat the owner of an `eval()` call as a model from here on."""
    holder = node.func.value  # type: ignore[attr-defined]
    if owner.kind is not Kind.UNKNOWN:
        return owner
    model = owner.replace(kind=Kind.MODEL)
    if isinstance(holder, ast.Name | ast.Attribute):
        state.names[text_of(holder)] = model
    return model


def _train(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if owner.kind is Kind.UNKNOWN and _is_false(node):
        owner = _as_model(state, node, owner)
    if owner.kind is not Kind.MODEL:
        return None
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    flag = arguments[0].value if arguments and isinstance(arguments[0], ast.Constant) else True
    if arguments and not isinstance(arguments[0], ast.Constant):
        return owner
    state.note(Action.TRAIN_MODE if flag else Action.EVAL_MODE, node, owner, call=node, name=".train")
    return owner


def _is_false(node: ast.Call) -> bool:
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value is False


def _load_state_dict(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    value = given.positional[0] if given.positional else next(iter(given.keywords.values()), UNKNOWN)
    state.note(Action.LOAD_STATE, node, value, call=node, name=".load_state_dict", result=owner)
    return UNKNOWN


def _requires_grad(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    flag = node.args[0] if node.args else next((keyword.value for keyword in node.keywords), None)
    is_off = isinstance(flag, ast.Constant) and flag.value is False
    state.note(Action.FREEZE if is_off else Action.NEEDS_GRADIENT, node, owner, call=node, name=".requires_grad_")
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


def _to_host(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    if owner.kind in (Kind.MODEL, Kind.NUMBER, Kind.ARRAY):
        return owner if owner.kind is Kind.MODEL else NUMBER
    state.note(Action.TO_HOST, node, owner, call=node, name="." + node.func.attr)  # type: ignore[attr-defined]
    name = node.func.attr  # type: ignore[attr-defined]
    if name == "cpu":
        return owner.replace(device=TensorDevice.CPU, node=node)
    kind = Kind.ARRAY if name == "numpy" else Kind.NUMBER
    return Value(kind=kind, graph=Graph.NO, device=TensorDevice.CPU, node=node, made_from=sources((owner,)))


def _to(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    text = text_of(node.args[0]) if node.args else ""
    if text in ('"cpu"', "'cpu'") or "torch.device('cpu')" in text:
        if owner.kind is not Kind.MODEL:
            state.note(Action.TO_HOST, node, owner, call=node, name=".to")
        return owner.replace(device=TensorDevice.CPU)
    if owner.kind is Kind.UNKNOWN or owner.kind is Kind.TENSOR:
        return owner.replace(device=TensorDevice.GPU, node=node)
    return owner


def _detach(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
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


def _append(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
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
    """Return the container of an append: `log[key]` for `log[key].append(...)`."""
    holder: ast.expr = node.func.value  # type: ignore[attr-defined]
    if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute) and holder.func.attr == "setdefault":
        return holder.func.value
    return holder


def _clear(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    target = text_of(node.func.value)  # type: ignore[attr-defined]
    state.events.append(Event(Action.FORGET, node, state.module, state.context, owner, call=node, target=target))
    return UNKNOWN


def _prepare(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value | None:
    """Return the arguments of an accelerator's or fabric's `prepare`, in their order."""
    if owner.kind not in (Kind.ACCELERATOR, Kind.FABRIC) or not given.positional:
        return None
    if len(given.positional) == 1:
        return given.positional[0]
    return Value(kind=Kind.CONTAINER, graph=Graph.NO, node=node, parts=given.positional)


HOLDING: Final[Mapping[str, Method]] = MappingProxyType(
    {
        **dict.fromkeys(("item", "cpu", "numpy", "tolist"), _to_host),
        **dict.fromkeys(("to", "cuda"), _to),
        **dict.fromkeys(("detach", "detach_"), _detach),
        **dict.fromkeys(("append", "appendleft", "extend", "add", "put", "insert"), _append),
        **dict.fromkeys(("prepare", "setup", "setup_module", "setup_optimizers", "setup_dataloaders"), _prepare),
        "clear": _clear,
    }
)
"""By the name of the method; None where it is not what its name says."""


_METHODS: Final[Mapping[str, Method]] = MappingProxyType({**TRAINING, **HOLDING})


def call_method(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value:
    """Note what a call of a method does that nobody here can follow, and give what it returns.

    Args:
        state: The run.
        node: The call; its function is an attribute.
        owner: Value that the method is called on.
        given: Its arguments.
    """
    name = node.func.attr  # type: ignore[attr-defined]
    method = _METHODS.get(name)
    value = None if method is None else method(state, node, owner, given)
    if value is not None:
        return value
    if owner.kind is Kind.MODEL:
        return _of_model(state, node, owner, given)
    value = _plain(state, node, owner, given)
    activation = owner.activation if name in known.SHAPE_METHODS else known.ACTIVATIONS.get(name)
    return value if activation is None else value.replace(activation=activation)


def forward(state: State, node: ast.Call, model: Value, given: Arguments) -> Value:
    """Note a forward pass, and give the model's output."""
    result = Value(
        kind=Kind.TENSOR,
        graph=state.records,
        device=TensorDevice.GPU,
        node=node,
        made_from=sources((*given.positional, *given.keywords.values())),
        activation=_last_activation(model),
    )
    state.note(Action.FORWARD, node, model, result=result, call=node)
    return result


def _last_activation(model: Value) -> str | None:
    """Return what a layer applies, or the last layer of an `nn.Sequential` that is written out."""
    library = model.library or ""
    if library == "torch.nn.Sequential" and isinstance(model.node, ast.Call) and model.node.args:
        last = model.node.args[-1]
        return known.ACTIVATIONS.get(text_of(last.func).rpartition(".")[2]) if isinstance(last, ast.Call) else None
    return known.ACTIVATIONS.get(library.rpartition(".")[2]) if library.startswith("torch.nn.") else None


def loss(state: State, node: ast.Call, given: Arguments) -> Value:
    """Give the loss that a loss function makes of its arguments."""
    value = computed_value(node, (*given.positional, *given.keywords.values()), state.records)
    return value.replace(kind=Kind.TENSOR, is_loss=True)


def _of_model(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value:
    name = node.func.attr  # type: ignore[attr-defined]
    if name in known.FORWARD_METHODS or known.IS_FORWARD_METHOD.match(name):
        return forward(state, node, owner, given)
    if name in known.GRADIENTLESS_FORWARDS:
        return Value(kind=Kind.TENSOR, graph=Graph.NO, device=TensorDevice.GPU, node=node)
    if name in known.SAME_METHODS:
        return owner
    return Value(node=node, made_from=sources(given.positional))


def _plain(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value:
    """A method without an event: of a tensor it mostly gives another tensor on the same graph."""
    name = node.func.attr  # type: ignore[attr-defined]
    if name in known.NUMBER_METHODS:
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node, made_from=sources((owner,)))
    if owner.kind is Kind.TENSOR or owner.graph is Graph.YES:
        value = computed_value(node, (owner, *given.positional), state.records)
        if name in ("div", "div_", "true_divide") and node.args:
            value = value.replace(divided_by=(*value.divided_by, text_of(node.args[0])))
        return value.replace(graph=Graph.NO) if name in known.GRAPHLESS_METHODS else value
    if owner.kind is Kind.ARRAY:
        return Value(kind=Kind.ARRAY, graph=Graph.NO, node=node)
    if name in known.GRAPHLESS_METHODS:
        return Value(graph=Graph.NO, node=node, made_from=sources((owner,)))
    return Value(node=node, made_from=sources((owner, *given.positional)), divided_by=owner.divided_by)
