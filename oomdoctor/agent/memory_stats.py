"""Memory statistics: the allocator's own figures and peaks in bytes, and the categories of live memory."""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here; torch's statistics have no public way

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any, NamedTuple

from . import null_gpu
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_KEPT = ("allocated_bytes", "reserved_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes")
_DEEPEST = 3  # an optimizer's state may hold lists of tensors, as Shampoo's does
_PEAK_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_COUNT_RESETS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")


def step_statistics(torch: Any, device: int) -> dict[str, int]:
    """Return the bytes that a step leaves behind, and the highest until now.

    The peaks are not reset between steps: they are the program's own figures too.
    """
    # The tree as the allocator gives it: `torch.cuda.memory_stats` flattens and sorts it, which takes far longer.
    tree = torch._C._cuda_memoryStats(device)
    allocated, reserved = tree["allocated_bytes"]["all"], tree["reserved_bytes"]["all"]
    return {
        "device": device,
        "allocated_bytes": allocated["current"],
        "reserved_bytes": reserved["current"],
        "peak_allocated_bytes": allocated["peak"],
        "peak_reserved_bytes": reserved["peak"],
    }


def kept_bytes(tree: dict[str, Any]) -> int:
    """Return the bytes that live tensors take, of the allocator's tree of statistics; two alike count the same.

    A large block may be larger than was asked for by up to 1 MiB, which is no growth, and those bytes are left out. A
    small one is of whole 512 bytes however little was asked for, as of a loss.
    """
    small = tree.get("allocated_bytes", {}).get("small_pool", {}).get("current", 0)
    large = (tree.get("requested_bytes") or tree.get("allocated_bytes", {})).get("large_pool", {}).get("current", 0)
    return int(small + large)


def device_statistics(torch: Any, device: int) -> dict[str, Any]:
    """Return what the allocator counted on one device, and the device's name and size."""
    tree = torch._C._cuda_memoryStats(device)
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


def limit_memory(torch: Any, limit_bytes: int, card_bytes: int = 0, reserve_bytes: int = 0) -> OwnLimits:
    """Keep PyTorch to so many bytes on every device, or to what is left on a card of so many; 0 for no limit.

    What is in use on the device already, the CUDA context and other processes, is in use on such a card too.
    `reserve_bytes` of what is free are kept for others. A limit of the program's own holds beside this one.
    """
    given = {}
    for device in range(torch.cuda.device_count()) if max(limit_bytes, card_bytes, reserve_bytes) > 0 else ():
        total = torch.cuda.get_device_properties(device).total_memory
        free = torch.cuda.mem_get_info(device)[0]
        left = max(0, (card_bytes or total) - (total - free) - reserve_bytes)
        allowed = min(left if max(card_bytes, reserve_bytes) > 0 else total, limit_bytes or total)
        given[device] = min(1.0, allowed / total)
        torch.cuda.set_per_process_memory_fraction(given[device], device)
    return OwnLimits(torch, given)


class OwnLimits:
    """Limits that the program sets itself, by `torch.cuda.set_per_process_memory_fraction`; none lifts a given one.

    Args:
        torch: The module.
        given: Part of each device's memory that PyTorch was given before, where that is not all.
    """

    def __init__(self, torch: Any, given: Mapping[int, float]) -> None:
        self._fractions: dict[int, float] = {}
        original = torch._C._cuda_setMemoryFraction

        @functools.wraps(original)
        def limit(fraction: float, device: int) -> Any:
            self._fractions[device] = fraction
            return original(min(fraction, given.get(device, 1.0)), device)

        torch._C._cuda_setMemoryFraction = limit

    def fraction(self, device: int) -> float:
        """Return the part of a device's memory that the program has allowed itself; 1 for all of it."""
        return self._fractions.get(device, 1.0)


class DevicePeaks(NamedTuple):
    """Highest figures of one device.

    Attributes:
        allocated_bytes: Most bytes in live tensors.
        reserved_bytes: Most bytes held from the driver.
        retries: Times that the allocator gave back its cache to try again, workspaces of cuDNN left out as for `ooms`.
        workspace_retries: Times that it did so for those.
        ooms: Times that it ran out, but for workspaces of cuDNN on a null GPU, which PyTorch can do without.
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    retries: int = 0
    workspace_retries: int = 0
    ooms: int = 0


class PeakKeeper:
    """Highest figures of a process, whatever the program makes the allocator forget.

    Args:
        torch: The module.
        devices: Indices of the devices that are watched.
        forgets_counts: Called with a device's statistics before the program resets its counts.
    """

    def __init__(
        self, torch: Any, devices: Iterable[int], forgets_counts: Callable[[int, Any], None] | None = None
    ) -> None:
        self._torch = torch
        self._forgets_counts = forgets_counts
        self._peaks = {device: DevicePeaks() for device in devices}
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Note the figures each time before the program resets them."""
        notes = {**dict.fromkeys(_PEAK_RESETS, self._note_peaks), **dict.fromkeys(_COUNT_RESETS, self._note_counts)}
        for name, note in notes.items():
            if hasattr(self._torch._C, name):
                self._call_before(name, guarded(note))

    def close(self) -> None:
        """Leave the resets as they were."""
        while self._undo:
            self._undo.pop()()

    def now(self) -> dict[int, DevicePeaks]:
        """Return the figures until now, by device."""
        self._note_peaks()
        given_up, retried = null_gpu.workspaces_given_up(), null_gpu.workspace_retries()
        return {
            device: peaks._replace(
                retries=max(0, peaks.retries - retried), workspace_retries=retried, ooms=max(0, peaks.ooms - given_up)
            )
            for device, peaks in self._with_counts().items()
        }

    def _with_counts(self) -> dict[int, DevicePeaks]:
        found = {}
        for device, peaks in self._peaks.items():
            tree = self._torch._C._cuda_memoryStats(device)
            retries, ooms = peaks.retries + tree["num_alloc_retries"], peaks.ooms + tree["num_ooms"]
            found[device] = peaks._replace(retries=retries, ooms=ooms)
        return found

    def _call_before(self, name: str, note: Callable[[], Any]) -> None:
        module = self._torch._C
        original = getattr(module, name)

        @functools.wraps(original)
        def reset(*arguments: Any, **named: Any) -> Any:
            note()
            return original(*arguments, **named)

        setattr(module, name, reset)
        self._undo.append(lambda: setattr(module, name, original))

    def _note_peaks(self) -> None:
        for device, peaks in self._peaks.items():
            tree = self._torch._C._cuda_memoryStats(device)
            allocated = max(peaks.allocated_bytes, tree["allocated_bytes"]["all"]["peak"])
            reserved = max(peaks.reserved_bytes, tree["reserved_bytes"]["all"]["peak"])
            self._peaks[device] = peaks._replace(allocated_bytes=allocated, reserved_bytes=reserved)

    def _note_counts(self) -> None:
        for device, peaks in self._with_counts().items():
            self._peaks[device] = peaks
            if self._forgets_counts is not None:
                self._forgets_counts(device, self._torch._C._cuda_memoryStats(device))


def live_categories(torch: Any) -> dict[int, str]:
    """Map the address of each storage on a device to its category: `weights`, `gradients` or `optimizer_state`.

    Buffers are counted as weights: they are part of what a model takes before it has seen a sample. Memory that
    nothing here accounts for is not in the map.
    """
    weights, states = _find(torch)
    found: dict[int, str] = {}
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of a tensor is asked, not run
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
    wanted = (torch.nn.Parameter, torch.nn.Module, torch.optim.Optimizer)
    kinds: dict[type, Any] = {}
    weights: list[Any] = []
    states: list[Any] = []
    for candidate in gc.get_objects():
        cls = type(candidate)  # not `isinstance`, which asks the object for its class, and a proxy answers for another
        if cls not in kinds:
            kinds[cls] = next((parent for parent in wanted if parent in cls.__mro__), None)
        kind = kinds[cls]
        if kind is torch.nn.Parameter:
            weights.append(candidate)
        elif kind is torch.nn.Module:
            held = candidate.__dict__
            weights += _tensors(torch, [held.get("_parameters"), held.get("_buffers")])
        elif kind is torch.optim.Optimizer:
            states += _tensors(torch, candidate.__dict__.get("state"))
    return weights, states


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
