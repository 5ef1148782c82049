"""Running sums that PyTorch has no shapes of for tensors without data.

Source: `_logcumsumexp_cuda`, ScanKernels.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.tracing.models.scans import SCAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice


def kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_logcumsumexp": partial(_logcumsumexp, device)}


def _logcumsumexp(device: EmulatedDevice, x: torch.Tensor, dim: int) -> torch.Tensor:
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x.contiguous()
    if x.dim() and x.numel() == x.shape[dim]:
        device.call_library(SCAN, x.numel(), x.dtype)
    return result
