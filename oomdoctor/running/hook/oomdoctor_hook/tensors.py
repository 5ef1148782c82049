"""Which memory holds parameters, gradients and optimizer state: asked of the objects themselves, not guessed."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 3  # an optimizer's state may hold lists of tensors, as Shampoo's does


def live_categories(torch: Any) -> dict[int, str]:
    """Map the address of each storage on a device to its category: `weights`, `gradients` or `optimizer_state`.

    Buffers are counted as weights: they are part of what a model takes before it has seen a sample. Memory that
    nothing here accounts for is not in the map.
    """
    weights, states = _find(torch)
    found: dict[int, str] = {}
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - a subclass of a tensor is asked, not run
        for tensor in weights:
            _add(found, tensor, "weights")
        for tensor in weights:
            if tensor.is_leaf and tensor.grad is not None:
                _add(found, tensor.grad, "gradients")
        for tensor in states:
            _add(found, tensor, "optimizer_state")
    return found


def _find(torch: Any) -> tuple[list[Any], list[Any]]:
    """Collect the tensors of all modules and optimizers, and parameters that are in neither."""
    kinds: dict[type, str | None] = {}
    weights: list[Any] = []
    states: list[Any] = []
    for candidate in gc.get_objects():
        cls = type(candidate)  # not `isinstance`, which asks the object for its class, and a proxy answers for another
        if cls not in kinds:
            kinds[cls] = _kind(torch, cls)
        kind = kinds[cls]
        if kind == "parameter":
            weights.append(candidate)
        elif kind == "module":
            held = candidate.__dict__
            weights += _tensors(torch, [held.get("_parameters"), held.get("_buffers")])
        elif kind == "optimizer":
            states += _tensors(torch, candidate.__dict__.get("state"))
    return weights, states


def _kind(torch: Any, cls: type) -> str | None:
    for kind, parent in (
        ("parameter", torch.nn.Parameter),
        ("module", torch.nn.Module),
        ("optimizer", torch.optim.Optimizer),
    ):
        if parent in cls.__mro__:
            return kind
    return None


def _tensors(torch: Any, held: Any, depth: int = 0) -> Iterator[Any]:
    if torch.Tensor in type(held).__mro__:
        yield held
    elif depth <= _DEEPEST and isinstance(held, (dict, list, tuple)):
        for value in list(held.values()) if isinstance(held, dict) else held:
            yield from _tensors(torch, value, depth + 1)


def _add(found: dict[int, str], tensor: Any, category: str) -> None:
    try:
        local = getattr(tensor, "_local_tensor", tensor)  # a tensor that is spread over devices has a part here
        if local.is_cuda:
            found.setdefault(local.untyped_storage().data_ptr(), category)
    except Exception:  # noqa: BLE001, S110 - a tensor without memory, such as a fake one
        pass
