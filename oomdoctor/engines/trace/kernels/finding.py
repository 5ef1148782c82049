"""Operators whose results are as large as their values say: known where the values are, and else assumed or refused.

The sizes come from the values that the host knows (`known_values`); the memory is that of CUDA's kernels, which count
first and find then. A mask is turned into the places of its elements, as C++ does. Where nobody knows the values, a
mask selects everything and all values differ, which is the most that there can be (`oomdoctor.agent.assumed_values`).

Source: `nonzero_cuda_out_impl`, Nonzero.cu; `expandTensors`, IndexingUtils.h; `unique_cuda_template`, UniqueCub.cu;
`_bincount_cuda_template`, SummaryOps.cu; `repeat_interleave_common`, Repeat.h; CUB's sizes as seen on null GPUs of four
cards with torch 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent import unknown_reads
from oomdoctor.agent.assumed_values import spread_places
from oomdoctor.engines.trace.kernels.sorting import (
    LOOKBACK_PADDING,
    SORT_PAIRS,
    cub_storage_bytes,
    inclusive_scan_bytes,
)
from oomdoctor.engines.trace.known_values import can_keep, host_values, keep_values
from oomdoctor.engines.trace.layouts import copied_bytes, resize
from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.refusals import untraceable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

_MASKS: Final = (torch.bool, torch.uint8)
_WHY: Final = "the shape of its result depends on data"
_COUNT, _FIND, _LEAVE = "cub_sum", "cub_select_flagged", "cub_unique"
_COUNT_RUNS, _ADD_UP = "cub_run_length_encode", "cub_inclusive_sum"
_INDEX_BYTES: Final = 8
_WORD: Final = 4


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "nonzero": partial(_nonzero, device),
        "index.Tensor": _index,
        "masked_select": _masked_select,
        "_unique2": partial(_unique, device),
        "_unique": lambda *args: _unique(device, *args)[:2],
        "unique_consecutive": partial(_unique_consecutive, device),
        "bincount": _bincount,
        "repeat_interleave.Tensor": _repeat_interleave,
    }


def _known(name: str, tensor: torch.Tensor) -> torch.Tensor:
    values = host_values(tensor)
    if values is None:
        raise untraceable(f"aten.{name}", _WHY)
    return values


def _known_or_noted(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values; None where nobody knows them, noted as a line where the most is assumed."""
    values = host_values(tensor)
    if values is None:
        unknown_reads.note("bound")
    return values


# --- places ----------------------------------------------------------------------------------------------------------


def _nonzero(device: EmulatedDevice, x: torch.Tensor) -> torch.Tensor:
    """Count what is not zero, and find it."""
    values = _known_or_noted(x)
    count = x.numel() if values is None else int(values.count_nonzero())
    copy = x.contiguous()
    counted = device.block(_WORD)
    device.call_library(_COUNT, x.numel())
    found = device.tensor((x.dim(), count), (count, 1), torch.int64).t()
    if x.dim():
        device.call_library(_FIND, x.numel())
    del counted, copy
    if values is None and can_keep(found):
        keep_values(found, torch.ones(x.shape, dtype=torch.bool, device="cpu").nonzero())
    return found


def are_masks(indices: Sequence[torch.Tensor | None]) -> bool:
    """Return whether one of the indices is a mask."""
    return any(index is not None and index.dtype in _MASKS for index in indices)


def places_of_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return the indices with the places of its elements instead of each mask.

    Raises:
        IndexError: A mask has another shape than what it is to choose from.
    """
    places: list[torch.Tensor | None] = []
    for position, index in enumerate(indices):
        if index is None or index.dtype not in _MASKS:
            places.append(index)
            continue
        chosen = x.shape[len(places) : len(places) + index.dim()]
        if index.shape != chosen:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {position} does not match the shape of the "
                f"indexed tensor {list(x.shape)} at index {len(places)}"
            )
        found = index.nonzero()
        places += [found.select(1, dim) for dim in range(index.dim())]
    return places


def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:  # noqa: ANN401 - or NotImplemented
    return torch.ops.aten.index.Tensor(x, places_of_masks(x, indices)) if are_masks(indices) else NotImplemented


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor
    given = [tensor if tensor.dim() else tensor.unsqueeze(0) for tensor in (x, mask)]
    whole, chosen = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    return torch.ops.aten.index.Tensor(whole, places_of_masks(whole, [chosen]))


# --- different values ------------------------------------------------------------------------------------------------


def _unique(
    device: EmulatedDevice,
    x: torch.Tensor,
    sorts: bool = True,  # noqa: FBT001, FBT002, ARG001 - PyTorch's signature; CUDA sorts always
    inverts: bool = False,  # noqa: FBT001, FBT002
    counts: bool = False,  # noqa: FBT001, FBT002
) -> tuple[torch.Tensor, ...]:
    """Find the different values: all where nobody knows them, and both of booleans."""
    values = _known_or_noted(x)
    most = min(x.numel(), 2) if x.dtype is torch.bool else x.numel()
    different = most if values is None else values.unique().numel()  # type: ignore[no-untyped-call]
    if x.dtype is torch.bool:
        made = _unique_flags(device, x, different, inverts=inverts)
    else:
        made = _unique_numbers(device, x, different, inverts=inverts, counts=counts)
    return _all_different(x.numel(), made) if values is None else made


def _all_different(count: int, made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Keep the inverse and the counts, where they are asked for, of so many values that are assumed to differ."""
    values, inverse, counts = made
    keep_values(values, None)
    places = partial(spread_places, torch, count, values.numel())
    if can_keep(inverse):
        keep_values(inverse, places().reshape(inverse.shape), "bound")
    if can_keep(counts):
        keep_values(counts, places().bincount(), "bound")
    return made


def _unique_numbers(
    device: EmulatedDevice, x: torch.Tensor, different: int, *, inverts: bool, counts: bool
) -> tuple[torch.Tensor, ...]:
    """Sort the values, with their places where the inverse is asked for, and leave one of each."""
    item, bits = x.element_size(), 8 * x.element_size()
    in_order = device.block(x.nbytes)
    numbers, places = (device.block(x.numel() * _INDEX_BYTES if inverts else 0) for _ in range(2))
    device.call_library(SORT_PAIRS, x.numel(), item, _INDEX_BYTES if inverts else 0, bits)
    del numbers
    inverse = _inverse(device, x, torch.int64) if inverts else _none(device)
    found, counted = _runs(device, x, different, counts=counts)
    del in_order, places
    return found, inverse, counted


def _unique_flags(
    device: EmulatedDevice, x: torch.Tensor, different: int, *, inverts: bool
) -> tuple[torch.Tensor, ...]:
    """Count what is true, which says all. Source: `unique_cuda_template<bool>`."""
    counted = device.block(_WORD)
    device.call_library(_COUNT, x.numel())
    values = _shortened(device, x.dtype, 2, different)
    inverse = device.tensor(x.shape, _contiguous(x.shape), torch.int64) if inverts else _none(device)
    counts = _shortened(device, torch.int64, 2, different)
    del counted
    return values, inverse, counts


def _unique_consecutive(
    device: EmulatedDevice,
    x: torch.Tensor,
    inverts: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
    counts: bool = False,  # noqa: FBT001, FBT002
    dim: int | None = None,
) -> Any:  # noqa: ANN401 - three tensors
    """Leave one of each run of equal values."""
    if dim is not None and x.dim() > 1:
        raise untraceable("aten.unique_consecutive", "along a dimension it is not emulated")
    values = _known_or_noted(x)
    runs = x.numel() if values is None else values.unique_consecutive().numel()  # type: ignore[no-untyped-call]
    inverse = _inverse(device, x, torch.int32) if inverts else _none(device)
    found, counted = _runs(device, x, runs, counts=counts)
    made = found, inverse, counted
    return _all_different(x.numel(), made) if values is None else made


def _inverse(device: EmulatedDevice, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Number the runs of equal values by where each begins."""
    inverse = device.tensor(x.shape, _contiguous(x.shape), torch.int64)
    begins = device.block(x.numel() * dtype.itemsize)
    device.call_library(_ADD_UP, x.numel())
    del begins
    return inverse


def _runs(device: EmulatedDevice, x: torch.Tensor, runs: int, *, counts: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one of each run, and their lengths if asked; both keep the memory of as many as there are values."""
    values, length = _shortened(device, x.dtype, x.numel(), runs), device.block(_INDEX_BYTES)
    lengths = _shortened(device, torch.int64, x.numel(), runs) if counts else _none(device)
    device.call_library(_COUNT_RUNS if counts else _LEAVE, x.numel())
    del length
    return values, lengths


def _none(device: EmulatedDevice) -> torch.Tensor:
    return device.tensor((0,), (1,), torch.int64)


def _shortened(device: EmulatedDevice, dtype: torch.dtype, count: int, kept: int) -> torch.Tensor:
    made = device.tensor((count,), (1,), dtype)
    keep_values(made, torch.zeros(()))  # so that those which are left can be kept without the rest
    resize(device, made, (kept,), (1,))
    return made


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


# --- numbers of each -------------------------------------------------------------------------------------------------


def _bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Find the largest value, on the card, which says how many counts there are."""
    values = _known("bincount", x)
    length = max(minlength, int(values.max()) + 1 if values.numel() else 0)
    ends = x.aminmax() if x.numel() else None
    dtype = torch.int64 if weights is None else torch.float64
    if weights is not None and weights.dtype is torch.float32:
        dtype = torch.float32
    result = torch.empty(length, dtype=dtype, device=x.device)
    del ends
    return result


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Return the index of each repeat; where their number is not given, it is read, and that none is negative."""
    total = output_size
    if total is None:
        total = int(_known("repeat_interleave.Tensor", repeats).sum())
    ends = repeats.cumsum(0)
    if output_size is None and repeats.numel():
        _ = repeats.min()
        del _
    result = torch.empty(total, dtype=repeats.dtype, device=repeats.device)
    del ends
    return result


# --- CUB's storage ---------------------------------------------------------------------------------------------------

_SUM_TILE: Final = 4096
_SUM_THREADS: Final = 256
_GRIDS_A_CARD: Final = 5
_STATE: Final = 8
_RUN_TILE: Final = 768
_TILES: Final = {
    _FIND: (640, {(8, 0): 2304, (8, 6): 640, (9, 0): 4224, (10, 0): 3520}),
    _LEAVE: (640, {(8, 0): 1920, (8, 6): 640, (9, 0): 4224}),
    _ADD_UP: (1920, {(8, 0): 3840, (8, 6): 1920, (9, 0): 3072}),
}
"""Elements of a block, and from which compute capability on there are others; narrow values count as wide ones."""


def _sum_bytes(call: OperatorCall) -> Temporaries:
    """Return the storage of `DeviceReduce::Sum`: a word for each block, unless there is one."""
    card, count = call.card, call.args[0]
    blocks = card.sm_count * (card.max_threads_per_sm // _SUM_THREADS) * _GRIDS_A_CARD
    return Temporaries(after=(1 if count <= _SUM_TILE else cub_storage_bytes(_WORD * blocks),))


def _lookback_bytes(function: str, call: OperatorCall) -> Temporaries:
    """Return the storage of a function whose blocks look back at those before: a state for each."""
    least, tiles = _TILES[function]
    since = max((capability for capability in tiles if capability <= call.card.compute_capability), default=None)
    tile = least if since is None else tiles[since]
    states = -(-call.args[0] // tile) + LOOKBACK_PADDING
    return Temporaries(after=(cub_storage_bytes(states * _STATE, alignments=2),))


def _run_bytes(call: OperatorCall) -> Temporaries:
    states = -(-call.args[0] // _RUN_TILE) + LOOKBACK_PADDING
    return Temporaries(after=(cub_storage_bytes(2 * states * _STATE),))


def _prefixes(call: OperatorCall) -> Temporaries:
    """Return the place of each number that is put, a mask that is not as large, and the storage of their sum."""
    target, mask = call.args[:2]
    shape = torch.broadcast_shapes(target.shape, mask.shape)  # type: ignore[no-untyped-call]
    whole = mask.expand(shape)
    count = whole.numel()
    return Temporaries(after=(count * _INDEX_BYTES, *copied_bytes((whole,)), inclusive_scan_bytes(count, torch.int64)))


TEMPORARIES: Final[TemporariesByName] = {
    _COUNT: _sum_bytes,
    _COUNT_RUNS: _run_bytes,
    **{name: partial(_lookback_bytes, name) for name in _TILES},
    "masked_scatter": _prefixes,
    "masked_scatter_": _prefixes,
}
