"""Reductions that are made up of others.

Source: `logsumexp_out_impl`, ReduceOps.cpp; `count_nonzero_cuda`, TensorAdvancedIndexing.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_aten: Final[Any] = torch.ops.aten


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"logsumexp.out": _logsumexp, "count_nonzero.dim_IntList": _count_nonzero}


def _logsumexp(
    x: torch.Tensor,
    dims: list[int],
    keepdim: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """What is largest is taken off, so that nothing overflows."""
    if not x.dtype.is_floating_point:
        x = x.to(out.dtype)
    if not x.numel():
        return torch.sum(x.exp(), dims, keepdim, out=out)
    largest = torch.amax(x, dims, keepdim=True)
    squeezed = largest if keepdim else largest.squeeze(tuple(dims))
    squeezed.masked_fill_(squeezed.abs() == float("inf"), 0)
    torch.sum((x - largest).exp_(), dims, keepdim, out=out)
    return out.log_().add_(squeezed)


def _count_nonzero(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return (x if x.dtype is torch.bool else x != 0).sum(dims)
