"""Gradients of distances: one for each pair, summed.

Source: `pdist_backward_kernel_impl` and `cdist_backward_kernel_impl`, DistanceKernel.cu; `_cdist_backward`,
Distance.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_pdist_backward": _pdist_backward, "_cdist_backward": _cdist_backward}


def _pdist_backward(_: torch.Tensor, x: torch.Tensor, *__: object) -> Any:  # noqa: ANN401 - or NotImplemented
    if not x.numel() or len(x) <= 1:
        return NotImplemented
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    pairs = x.new_empty((len(x) - 1, *x.shape))
    return torch.sum(pairs, 0, out=result)


def _cdist_backward(_: torch.Tensor, x: torch.Tensor, other: torch.Tensor, *__: object) -> Any:  # noqa: ANN401
    if not x.numel() or not other.numel():
        return NotImplemented
    batch = torch.broadcast_shapes(x.shape[:-2], other.shape[:-2])  # type: ignore[no-untyped-call]
    result = x.new_empty((*batch, *x.shape[-2:]))
    pairs = x.new_empty((*batch, other.shape[-2], *x.shape[-2:]))
    return torch.sum(pairs, -3, out=result)
