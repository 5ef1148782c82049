"""Running sums and their kin: where all of a tensor is one run, CUB's blocks look back at what those before them have.

Source: `scan_dim`, ScanUtils.cuh; ScanKernels.cpp; CUB's dispatch_scan.cuh and `ScanTileState` in
single_pass_scan_operators.cuh. How many bytes a block goes through was found from sizes on null GPUs, torch 2.6 and
2.15, the same on cards from Turing to Blackwell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

SCAN: Final = "cub_inclusive_scan"

_ALIGNMENT: Final = 256
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


def _running(call: Call) -> Temporaries:
    """Contiguous, and of the result's type."""
    x, dim = call.args[:2]
    dtype = call.kwargs.get("dtype") or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    is_copied = dtype is not x.dtype or not x.is_contiguous()
    copy = (x.numel() * dtype.itemsize,) if is_copied else ()
    is_one_run = x.dim() > 0 and x.numel() == x.shape[dim]
    return Temporaries(after=(*copy, *((inclusive_scan_bytes(x.numel(), dtype),) if is_one_run else ())))


def _scan(call: Call) -> Temporaries:
    return Temporaries(after=(inclusive_scan_bytes(*call.args),))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("cumsum", "cumprod", "cumsum_", "cumprod_"), _running),
    SCAN: _scan,
}
