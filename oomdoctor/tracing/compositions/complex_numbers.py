"""Numbers that are computed as complex ones, of which the real part is returned.

Source: `unary_op_impl_with_complex_to_float_out`, UnaryOps.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"abs.out": _absolute, "angle": _angle}


def _absolute(x: torch.Tensor, *, out: torch.Tensor) -> Any:  # noqa: ANN401 - or NotImplemented
    """The result is there before."""
    if not x.is_complex() or out.is_complex() or out.shape != x.shape:
        return NotImplemented
    torch.empty_like(x)
    return out


def _angle(x: torch.Tensor) -> Any:  # noqa: ANN401 - or NotImplemented
    """The result is made when they are there."""
    if not x.is_complex():
        return NotImplemented
    whole = torch.empty_like(x)
    return torch.empty_like(whole, dtype=x.dtype.to_real())
