"""Scans (running sums): the temporary storage of CUB's scans and of its removal of duplicates.

Source: the layouts of temporary storage in CUB's dispatch_scan.cuh, dispatch_unique_by_key.cuh and `ScanTileState` in
single_pass_scan_operators.cuh; `scan_dim`, ScanUtils.cuh; `_logcumsumexp_cuda`, ScanKernels.cpp; torch 2.6 to 2.15. The
items of a block are the policy of a kernel compiled for a GPU; they were found from the sizes on null GPUs, torch 2.6
and 2.15, the same on cards from Turing to Blackwell.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.engines.trace.layouts import HALF_TYPES
from oomdoctor.engines.trace.temporaries import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.temporaries import Call, KernelsByName, TemporariesByName

IS_NEW: Final = TORCH >= (2, 7)
"""Whether CUB is that of torch 2.15; between 2.6 and 2.15 nothing is known."""
LOOKBACK_PADDING: Final = 32
"""States that a scan's storage has besides one for each block."""

_SCAN: Final = "cub_inclusive_scan"
_ALIGNMENT: Final = 256
_SUM_TILES: Final = {4: 1920, 8: 896}
_SUM_STATES: Final = {4: 8, 8: 16}
_SUM_BY_KEY_TILE: Final = 1664
_BLOCK_BYTES: Final = 7680
_WIDE_BLOCK_BYTES: Final = 7168
_WIDE: Final = 8
_STATE: Final = 4


def cub_storage_bytes(*parts: int, alignments: int = 1) -> int:
    """Return the bytes of CUB's temporary storage: its parts, each aligned, and room to align the first.

    Args:
        parts: Bytes of each part.
        alignments: Times that the storage itself is aligned.
    """
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + alignments * _ALIGNMENT - 1


def _lookback_bytes(blocks: int, state_bytes: int) -> int:
    return cub_storage_bytes((blocks + LOOKBACK_PADDING) * state_bytes, alignments=2 if IS_NEW else 1)


def exclusive_sum_bytes(count: int, item_bytes: int) -> int:
    """Return the bytes of storage of `exclusive_sum`."""
    return _lookback_bytes(-(-count // _SUM_TILES[item_bytes]), _SUM_STATES[item_bytes])


def scan_by_key_bytes(count: int) -> int:
    """Return the bytes of storage of `inclusive_sum_by_key` of 64-bit integers."""
    return cub_storage_bytes((-(-count // _SUM_BY_KEY_TILE) + LOOKBACK_PADDING) * 16, alignments=2)


def unique_by_key_bytes(count: int, item_bytes: int) -> int:
    """Return the bytes of storage of `unique_by_key`."""
    tile = 2816 if item_bytes == 4 else 1344 if IS_NEW else 1792  # noqa: PLR2004 - bytes of a 32-bit integer
    return _lookback_bytes(-(-count // tile), 16 if IS_NEW else 8)


def inclusive_scan_bytes(count: int, dtype: torch.dtype) -> int:
    """Return the bytes of storage of `DeviceScan::InclusiveScan` over `count` numbers."""
    size, is_half = dtype.itemsize, dtype in HALF_TYPES
    states = -(-count * size // (_WIDE_BLOCK_BYTES if size >= _WIDE else _BLOCK_BYTES)) + LOOKBACK_PADDING
    # a state and its number are one word, but PyTorch's own types have them apart, and the number twice
    parts = (_STATE, size, size) if is_half else (2 * max(size, _STATE),)
    return cub_storage_bytes(*(states * part for part in parts), alignments=2 if IS_NEW or is_half else 1)


def _running_sum(call: Call) -> Temporaries:
    """Return a contiguous copy in the result's type, and the storage where the tensor is one run."""
    x, dim = call.args[:2]
    dtype = call.kwargs.get("dtype") or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    is_copied = dtype is not x.dtype or not x.is_contiguous()
    copy = (x.numel() * dtype.itemsize,) if is_copied else ()
    is_one_run = x.dim() > 0 and x.numel() == x.shape[dim]
    return Temporaries(after=(*copy, *((inclusive_scan_bytes(x.numel(), dtype),) if is_one_run else ())))


def _scan(call: Call) -> Temporaries:
    return Temporaries(after=(inclusive_scan_bytes(*call.args),))


TEMPORARIES: Final[TemporariesByName] = {
    **dict.fromkeys(("cumsum", "cumprod", "cumsum_", "cumprod_"), _running_sum),
    _SCAN: _scan,
}


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {"_logcumsumexp": partial(_logcumsumexp, device)}


def _logcumsumexp(device: EmulatedDevice, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Allocate the result; `meta` has no kernel of this operator."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x.contiguous()
    if x.dim() and x.numel() == x.shape[dim]:
        device.call_library(_SCAN, x.numel(), x.dtype)
    return result
