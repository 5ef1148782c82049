"""The backward of a convolution's backward, which copies more for CUDA than for a device that C++ does not know.

Gradient penalties and other losses on gradients come here. Source: `_convolution_double_backward`, Convolution.cpp,
torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

Found = torch.Tensor | None


class _Settings(NamedTuple):
    """How the convolution goes over its input."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def convolution_double_backward(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    for_input: Found,
    for_weight: Found,
    for_bias: Found,
    gradient: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    *rest: object,
) -> tuple[Found, Found, Found]:
    """Gradients of the output's gradient, the input and the weight, as CUDA finds them; the last of `rest` is unused.

    Args:
        for_input: Gradient of the input's gradient.
        for_weight: Gradient of the weight's.
        for_bias: Gradient of the bias's.
        gradient: The output's gradient.
        weight: The weight.
        x: The input.
        rest: Stride, padding, dilation, whether it is transposed, output padding, groups and what is wanted.
    """
    settings = _Settings(*rest[:-1])  # type: ignore[arg-type]
    of_gradient: Found = None
    if for_input is not None and x.numel():
        weight = weight.contiguous()
        of_gradient = _convolve(for_input, weight, settings)
    if for_weight is not None and x.numel():
        for_weight = for_weight.contiguous()
        of_gradient = _sum(of_gradient, _convolve(x, for_weight, settings))
    if for_bias is not None:
        row = for_bias.contiguous().view(1, -1, *(1,) * (gradient.dim() - 2))
        of_gradient = _sum(of_gradient, row.expand(gradient.shape))
    of_weight = _of_weight(for_input, gradient, weight, settings) if for_input is not None and x.numel() else None
    of_input = _of_input(for_weight, gradient, x, settings) if for_weight is not None and x.numel() else None
    return of_gradient, of_input, of_weight


def _sum(first: Found, second: torch.Tensor) -> torch.Tensor:
    return second if first is None else first + second


def _convolve(x: torch.Tensor, weight: torch.Tensor, settings: _Settings) -> torch.Tensor:
    return torch.convolution(x, weight, None, *settings)


def _of_weight(
    for_input: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, settings: _Settings
) -> torch.Tensor:
    """The convolution of the two, summed over the batch, group by group."""
    swapped = settings._replace(stride=settings.dilation, dilation=settings.stride, groups=1, transposed=False)
    gradients, inputs = gradient.transpose(0, 1), for_input.transpose(0, 1)
    parts = []
    for a, b in zip(gradients.chunk(settings.groups), inputs.chunk(settings.groups), strict=True):
        filters = a.contiguous()
        parts.append(_convolve(filters, b, swapped) if settings.transposed else _convolve(b, filters, swapped))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return _cut(whole.transpose(0, 1), weight.shape)


def _of_input(for_weight: torch.Tensor, gradient: torch.Tensor, x: torch.Tensor, settings: _Settings) -> torch.Tensor:
    back = settings._replace(transposed=not settings.transposed)
    if settings.transposed:
        return _cut(_convolve(gradient.contiguous(), for_weight, back), x.shape)
    missing = [
        length - ((kernel - 1) * dilation - 2 * padding + stride * (left - 1) + 1)
        for length, kernel, left, stride, padding, dilation in zip(
            x.shape[2:], for_weight.shape[2:], gradient.shape[2:], *settings[:3], strict=True
        )
    ]
    return _convolve(gradient.contiguous(), for_weight, back._replace(output_padding=missing))


def _cut(tensor: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """The beginning of each dimension but the first two."""
    for index in range(2, tensor.dim()):
        if tensor.shape[index] > size[index]:
            tensor = tensor.narrow(index, 0, size[index])
    return tensor
