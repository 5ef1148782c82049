"""Scans (running sums): the temporary storage of CUB's scans and of its removal of duplicates.

Source: the layouts of temporary storage in CUB's dispatch_scan.cuh and dispatch_unique_by_key.cuh. How
many items a block goes through is the policy of a kernel that was compiled for a GPU; it was found from the sizes on
null GPUs, torch 2.6 and 2.15.

Source: `scan_dim`, ScanUtils.cuh; ScanKernels.cpp; CUB's dispatch_scan.cuh and `ScanTileState` in
single_pass_scan_operators.cuh. How many bytes a block goes through was found from sizes on null GPUs, torch 2.6 and
2.15, the same on cards from Turing to Blackwell.

Source: `_logcumsumexp_cuda`, ScanKernels.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.temporaries import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.temporaries import Call


_ALIGNMENT: Final = 256
_LOOKBACK_PADDING: Final = 32

_SCAN_TILES: Final = {4: 1920, 8: 896}
_SCAN_STATES: Final = {4: 8, 8: 16}
_SCAN_BY_KEY_TILE: Final = 1664

IS_NEW: Final = TORCH >= (2, 7)
"""Whether CUB is the one of torch 2.15; of those between 2.6 and it nothing is known."""


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _lookback_bytes(blocks: int, state_bytes: int) -> int:
    """States of a look-back, one a block, after the storage's own alignment."""
    own = 2 * _ALIGNMENT if IS_NEW else _ALIGNMENT
    return _align((blocks + _LOOKBACK_PADDING) * state_bytes) + own - 1


def exclusive_sum_bytes(count: int, item_bytes: int) -> int:
    """Storage of `exclusive_sum`."""
    return _lookback_bytes(-(-count // _SCAN_TILES[item_bytes]), _SCAN_STATES[item_bytes])


def scan_by_key_bytes(count: int) -> int:
    """Storage of `inclusive_sum_by_key` of 64-bit integers."""
    return _align((-(-count // _SCAN_BY_KEY_TILE) + _LOOKBACK_PADDING) * 16) + 2 * _ALIGNMENT - 1


def unique_by_key_bytes(count: int, item_bytes: int) -> int:
    """Storage of `unique_by_key`."""
    tile = 2816 if item_bytes == 4 else 1344 if IS_NEW else 1792  # noqa: PLR2004 - bytes of a 32-bit integer
    return _lookback_bytes(-(-count // tile), 16 if IS_NEW else 8)


SCAN: Final = "cub_inclusive_scan"

_BYTES_A_BLOCK: Final = 7680
_BYTES_A_WIDE_BLOCK: Final = 7168
_WIDE: Final = 8
_LOOKED_BACK: Final = 32
_HALVES: Final = (torch.float16, torch.bfloat16)
_STATE: Final = 4
_ALIGNS_TWICE: Final = TORCH >= (2, 7)
"""Storage is aligned once more in 2.15; 2.6 does so only where a state is of several parts."""


def inclusive_scan_bytes(count: int, dtype: torch.dtype) -> int:
    """Temporary storage of `DeviceScan::InclusiveScan` over `count` numbers."""
    size = dtype.itemsize
    block_bytes = _BYTES_A_WIDE_BLOCK if size >= _WIDE else _BYTES_A_BLOCK
    states = -(-count * size // block_bytes) + _LOOKED_BACK
    # a state and its number are one word, but PyTorch's own types have them apart, and the number twice
    parts = (_STATE, size, size) if dtype in _HALVES else (2 * max(size, _STATE),)
    own = _ALIGNMENT if _ALIGNS_TWICE or dtype in _HALVES else 0
    return sum(-(-states * part // _ALIGNMENT) * _ALIGNMENT for part in parts) + own + _ALIGNMENT - 1


def _running_sum(call: Call) -> Temporaries:
    """Contiguous, and of the result's type."""
    x, dim = call.args[:2]
    dtype = call.kwargs.get("dtype") or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    is_copied = dtype is not x.dtype or not x.is_contiguous()
    copy = (x.numel() * dtype.itemsize,) if is_copied else ()
    is_one_run = x.dim() > 0 and x.numel() == x.shape[dim]
    return Temporaries(after=(*copy, *((inclusive_scan_bytes(x.numel(), dtype),) if is_one_run else ())))


def _scan(call: Call) -> Temporaries:
    return Temporaries(after=(inclusive_scan_bytes(*call.args),))


SCAN_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("cumsum", "cumprod", "cumsum_", "cumprod_"), _running_sum),
    SCAN: _scan,
}


def scan_kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_logcumsumexp": partial(_logcumsumexp, device)}


def _logcumsumexp(device: EmulatedDevice, x: torch.Tensor, dim: int) -> torch.Tensor:
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x.contiguous()
    if x.dim() and x.numel() == x.shape[dim]:
        device.call_library(SCAN, x.numel(), x.dtype)
    return result
