"""Quantization-aware training: observers of ranges, and tensors that are rounded as if they were quantized.

What these kernels read of scales and zero points, they compute with or check: memory is the same whatever it is, so no
read of theirs is noted.

Source: FusedObsFakeQuant.cu, FakeQuantPerChannelAffine.cpp, FakeQuantPerTensorAffine.cpp; torch 2.15.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from oomdoctor.engines.trace.op_trace import KernelsByName

_MATRIX: Final = 2
_aten: Final[Any] = torch.ops.aten


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "_fused_moving_avg_obs_fq_helper": _observe_and_round,
        "fake_quantize_per_tensor_affine_cachemask": _round,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _round,
        "fake_quantize_per_channel_affine_cachemask": _round_channels,
        "_fake_quantize_learnable_per_tensor_affine": lambda x, *_: _round(x)[0],
        "_fake_quantize_learnable_per_tensor_affine_backward": _learn,
        "_fake_quantize_learnable_per_channel_affine": _round_learned_channels,
        "_fake_quantize_learnable_per_channel_affine_backward": _learn_channels,
    }


def _observe_and_round(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    x: torch.Tensor,
    observer_on: torch.Tensor,  # noqa: ARG001 - as above; the ranges are taken where it is off, too
    fake_quant_on: torch.Tensor,
    running_min: torch.Tensor,
    running_max: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging_constant: float,  # noqa: ARG001 - as above
    quant_min: int,
    quant_max: int,
    axis: int,
    per_channel: bool = False,  # noqa: FBT001, FBT002 - as above
    symmetric: bool = False,  # noqa: ARG001, FBT001, FBT002 - as above
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the range of a tensor or of its channels, and round the tensor; both at once."""
    contiguous = x.contiguous()  # which lives as long as the kernel
    if not per_channel:
        torch.aminmax(contiguous)
        return _round(x)
    rows = x if x.dim() == _MATRIX else x.transpose(0, axis).flatten(1)
    if not running_min.numel():  # the first time it is seen how many channels there are
        running_min.resize_(x.shape[axis]).fill_(inf)
        running_max.resize_(x.shape[axis]).fill_(-inf)
        scale.resize_(x.shape[axis])
        zero_point.resize_(x.shape[axis])
    torch.aminmax(rows, dim=1)
    del rows
    if fake_quant_on.item():
        rounded: tuple[torch.Tensor, torch.Tensor] = _aten.fake_quantize_per_channel_affine_cachemask(
            x, scale, zero_point, 0, quant_min, quant_max
        )
        return rounded
    mask = torch.ones_like(x, dtype=torch.bool)
    return x.clone(), mask


def _round(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rounded tensor, and which elements were in the range."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _round_channels(
    x: torch.Tensor, _scale: torch.Tensor, zero_point: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check the zero points, and round each channel."""
    if not zero_point.dtype.is_floating_point:
        torch.aminmax(zero_point)
    return _round(x)


def _round_learned_channels(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    _axis: int,
    quant_min: int,
    quant_max: int,
    _factor: float = 1.0,
) -> torch.Tensor:
    return _round_channels(x, scale, zero_point.round().clamp_(quant_min, quant_max).to(torch.int32))[0]


def _learn(_gradient: torch.Tensor, x: torch.Tensor, *_: object) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of a tensor, its scale and its zero point; the latter for each element, then summed."""
    gradient, *whole = (torch.empty_like(x) for _ in range(3))
    return gradient, *(one.sum().unsqueeze(0) for one in whole)


def _learn_channels(
    _gradient: torch.Tensor,
    x: torch.Tensor,
    _scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    _factor: float = 1.0,
) -> tuple[torch.Tensor, ...]:
    rounded = zero_point.round().clamp_(quant_min, quant_max)  # which lives as long as the kernel
    torch.aminmax(rounded)
    gradient, *whole = (torch.empty_like(x) for _ in range(3))
    others = [dim for dim in range(x.dim()) if dim != axis]
    return gradient, *(one.sum(others) for one in whole)
