"""Convolutions as cuDNN's are done, with what PyTorch makes before and after: contiguous copies and the bias.

Source: `_convolution` and `convolution_backward`, Convolution.cpp, and ConvShared.cpp of cuDNN, torch 2.6 to 2.15.
cuDNN's own workspace is not known without a GPU, and is no part of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.tracing.private import operator_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SIGNAL: Final = 3
_PICTURE: Final = 4
_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_HALVES: Final = (torch.float16, torch.bfloat16)


class _Settings(NamedTuple):
    """How a convolution goes over its input."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def convolution_kernels() -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""
    return {operator_named("convolution"): _forward, operator_named("convolution_backward"): _backward}


def _forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> torch.Tensor:  # noqa: ANN401
    settings = _Settings(*rest)
    size = _size(x, weight, settings)
    if x.dim() == _SIGNAL:  # is done as a picture of one row
        row = _convolve(x.contiguous().unsqueeze(2), weight.unsqueeze(2), bias, (*size[:2], 1, size[2]), settings)
        return row.view(size)
    return _convolve(x, weight, bias, size, settings)


def _convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, size: Sequence[int], settings: _Settings
) -> torch.Tensor:
    depthwise = _is_depthwise(x, weight, settings)
    layout = torch.contiguous_format if depthwise else _layout(x, weight)
    x = x.contiguous(memory_format=layout)
    if depthwise:
        weight = weight.contiguous()
        return torch.empty(size, dtype=x.dtype, device=x.device)
    output = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=layout)
    weight = weight.contiguous(memory_format=layout)
    return output if bias is None else output.add_(bias.reshape(1, -1, *(1,) * (output.dim() - 2)))


def _backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _: object, *rest: Any  # noqa: ANN401
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    settings, mask = _Settings(*rest[:-1]), rest[-1]
    if x.dim() != _SIGNAL:
        return _gradients(gradient, x, weight, settings, mask)
    rows = (gradient.contiguous().unsqueeze(2), x.contiguous().unsqueeze(2), weight.unsqueeze(2))
    for_x, for_weight, for_bias = _gradients(*rows, settings, mask)
    return *(None if found is None else found.squeeze(2) for found in (for_x, for_weight)), for_bias


def _gradients(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, settings: _Settings, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    depthwise = _is_depthwise(x, weight, settings)
    layout = torch.contiguous_format if depthwise else _layout(x, weight)
    copies = [gradient.contiguous(memory_format=layout)]
    if mask[1] or depthwise:
        copies.append(x.contiguous(memory_format=layout))
    copies.append(weight.contiguous(memory_format=layout))
    found = [
        torch.empty(like.shape, dtype=like.dtype, device=like.device, memory_format=layout) if wanted else None
        for like, wanted in zip((x, weight), mask, strict=False)
    ]
    copies.clear()
    return *found, gradient.sum([0, *range(2, gradient.dim())]) if mask[2] else None


def _size(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> tuple[int, ...]:
    metas = (torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in (x, weight))
    return tuple(operator_named("convolution")(*metas, None, *settings).shape)


def _layout(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """`cudnn_conv_suggest_memory_format`: channels last where either of the two is, and not double precision."""
    last = _LAST[x.dim()]
    if x.dtype is not torch.float64 and any(_suggests(tensor, last) for tensor in (x, weight)):
        return last
    return torch.contiguous_format


def _suggests(tensor: torch.Tensor, last: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()


def _is_depthwise(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> bool:
    """Whether PyTorch's own kernel for one filter a channel is taken; half precision goes to cuDNN."""
    one_a_channel = x.shape[1] == settings.groups > 1 and weight.shape[0] % x.shape[1] == 0
    return one_a_channel and not settings.transposed and x.dim() == _PICTURE and x.dtype not in _HALVES
