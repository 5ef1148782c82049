"""Memory statistics: the allocator's own figures in bytes.

Which memory holds parameters, gradients and optimizer state.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


_KEPT = ("allocated_bytes", "reserved_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes")


def step_statistics(torch: Any, device: int) -> dict[str, int]:
    """Give what a step leaves behind, and the highest until now.

    The peaks are not reset between steps: they are the program's own figures too.
    """
    # The tree as the allocator gives it: `torch.cuda.memory_stats` flattens and sorts it, which takes far longer.
    tree = torch._C._cuda_memoryStats(device)  # noqa: SLF001
    allocated, reserved = tree["allocated_bytes"]["all"], tree["reserved_bytes"]["all"]
    return {
        "device": device,
        "allocated_bytes": allocated["current"],
        "reserved_bytes": reserved["current"],
        "peak_allocated_bytes": allocated["peak"],
        "peak_reserved_bytes": reserved["peak"],
    }


def device_statistics(torch: Any, device: int) -> dict[str, Any]:
    """Give what the allocator counted on one device, and the device's name and size."""
    tree = torch._C._cuda_memoryStats(device)  # noqa: SLF001
    found: dict[str, Any] = {"index": device}
    for name in _KEPT:
        counts = tree.get(name, {}).get("all", {})
        found[name] = counts.get("current")
        found["peak_" + name] = counts.get("peak")
    found["num_alloc_retries"] = tree.get("num_alloc_retries")
    found["num_ooms"] = tree.get("num_ooms")
    try:
        found["name"] = torch.cuda.get_device_name(device)
        found["free_bytes"], found["total_bytes"] = torch.cuda.mem_get_info(device)
    except Exception:  # noqa: BLE001 - the device may be beyond answering
        found["name"] = found["free_bytes"] = found["total_bytes"] = None
    return found


_DEEPEST = 3  # an optimizer's state may hold lists of tensors, as Shampoo's does


def live_categories(torch: Any) -> dict[int, str]:
    """Map the address of each storage on a device to its category: `weights`, `gradients` or `optimizer_state`.

    Buffers are counted as weights: they are part of what a model takes before it has seen a sample. Memory that
    nothing here accounts for is not in the map.
    """
    weights, states = _find_tensors(torch)
    found: dict[int, str] = {}
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - a subclass of a tensor is asked, not run
        for tensor in weights:
            _add_category(found, tensor, "weights")
        for tensor in weights:
            if tensor.is_leaf and tensor.grad is not None:
                _add_category(found, tensor.grad, "gradients")
        for tensor in states:
            _add_category(found, tensor, "optimizer_state")
    return found


def _find_tensors(torch: Any) -> tuple[list[Any], list[Any]]:
    """Collect the tensors of all modules and optimizers, and parameters that are in neither."""
    kinds: dict[type, str | None] = {}
    weights: list[Any] = []
    states: list[Any] = []
    for candidate in gc.get_objects():
        cls = type(candidate)  # not `isinstance`, which asks the object for its class, and a proxy answers for another
        if cls not in kinds:
            kinds[cls] = _holder_kind(torch, cls)
        kind = kinds[cls]
        if kind == "parameter":
            weights.append(candidate)
        elif kind == "module":
            held = candidate.__dict__
            weights += _tensors(torch, [held.get("_parameters"), held.get("_buffers")])
        elif kind == "optimizer":
            states += _tensors(torch, candidate.__dict__.get("state"))
    return weights, states


def _holder_kind(torch: Any, cls: type) -> str | None:
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


def _add_category(found: dict[int, str], tensor: Any, category: str) -> None:
    try:
        local = getattr(tensor, "_local_tensor", tensor)  # a tensor that is spread over devices has a part here
        if local.is_cuda:
            found.setdefault(local.untyped_storage().data_ptr(), category)
    except Exception:  # noqa: BLE001, S110 - a tensor without memory, such as a fake one
        pass
