"""Convolutions as cuDNN's are done, with what PyTorch makes before and after: contiguous copies and the bias.

Source: `_convolution` and `convolution_backward`, Convolution.cpp, and ConvShared.cpp of cuDNN, torch 2.6 to 2.15.
cuDNN's own workspace is not known without a GPU, and is no part of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice

_aten: Any = torch.ops.aten
_PLANE: Final = 4
_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_HALVES: Final = (torch.float16, torch.bfloat16)


def convolution_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""

    def forward(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):  # noqa: ANN001, ANN202, PLR0913
        shape = _aten.convolution.default(
            *(_meta(t) for t in (x, weight)), None, stride, padding, dilation, transposed, output_padding, groups
        ).shape
        if x.dim() == 3:  # noqa: PLR2004 - a signal is done as a picture of one row
            x, weight, shape4 = x.contiguous().unsqueeze(2), weight.unsqueeze(2), (shape[0], shape[1], 1, shape[2])
        else:
            shape4 = shape
        layout = _layout(x, weight)
        is_depthwise = _is_depthwise(x, weight, groups, transposed=transposed, dilation=dilation)
        if is_depthwise:
            x, weight = x.contiguous(), weight.contiguous()
            output = torch.empty(shape4, dtype=x.dtype, device=x.device)
        else:
            x = x.contiguous(memory_format=layout)
            output = torch.empty(shape4, dtype=x.dtype, device=x.device, memory_format=layout)
            weight = weight.contiguous(memory_format=layout)
            if bias is not None:
                output.add_(bias.reshape(1, -1, *(1,) * (output.dim() - 2)))
        return output.view(shape) if len(shape) != len(shape4) else output

    def backward(gradient, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):  # noqa: ANN001, ANN202, PLR0913
        is_row = x.dim() == 3  # noqa: PLR2004
        if is_row:
            gradient, x, weight = gradient.contiguous().unsqueeze(2), x.contiguous().unsqueeze(2), weight.unsqueeze(2)
        is_depthwise = _is_depthwise(x, weight, groups, transposed=transposed, dilation=dilation)
        layout = torch.contiguous_format if is_depthwise else _layout(x, weight)
        given = gradient
        gradient = gradient.contiguous(memory_format=layout)
        x_like = x.contiguous(memory_format=layout) if mask[1] or is_depthwise else x
        weight_like = weight.contiguous(memory_format=layout)
        results: list[Any] = [None, None, None]
        if mask[0]:
            results[0] = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=layout)
        if mask[1]:
            results[1] = torch.empty(weight.shape, dtype=weight.dtype, device=x.device, memory_format=layout)
        del x_like, weight_like, gradient
        if mask[2]:
            results[2] = given.sum([0, *range(2, given.dim())])
        if is_row:
            results[:2] = [result if result is None else result.squeeze(2) for result in results[:2]]
        return tuple(results)

    return {_aten.convolution.default: forward, _aten.convolution_backward.default: backward}


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """`cudnn_conv_suggest_memory_format`: channels last where either of the two is, and not double precision."""
    last = _LAST[x.dim()]
    if x.dtype is not torch.float64 and any(_suggests(tensor, last) for tensor in (x, weight)):
        return last
    return torch.contiguous_format


def _suggests(tensor: torch.Tensor, last: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()


def _is_depthwise(x: torch.Tensor, weight: torch.Tensor, groups: int, *, transposed: bool, dilation: Any) -> bool:
    """Whether PyTorch's own kernel for one filter a channel is taken; half precision goes to cuDNN."""
    depthwise = x.shape[1] == groups > 1 and weight.shape[0] % x.shape[1] == 0 and not transposed
    return depthwise and x.dim() == _PLANE and not (x.dtype in _HALVES)
