"""Copies that are made one after the other.

Source: `roll_cuda`, TensorTransformations.cu, and `roll_common`, TensorTransformations.h; `repeat_interleave_cuda`,
Repeat.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"roll": _roll, "repeat_interleave.Tensor": _repeat_interleave}


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """One dimension after the other; laid flat where none is named."""
    if not dims:
        return _rolled(x.contiguous().view(-1)).view(x.shape)
    first = _rolled(x)
    return _roll(first, shifts[1:], dims[1:]) if len(dims) > 1 else first


def _rolled(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    return torch.empty_like(x)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:  # noqa: ANN401 - or NotImplemented
    if output_size is None:
        return NotImplemented
    ends = repeats.cumsum(0)
    result = torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)
    del ends
    return result
