"""Windows of pictures as columns, and back: the result begins as large as the input, and is then given its own size.

Source: `im2col_cuda` and `col2im_cuda`, Im2Col.cu and Col2Im.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.tracing.private import operator_named, strided_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice


def window_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator."""

    def kernel(operator: Any) -> Callable[..., torch.Tensor]:  # noqa: ANN401 - an operator
        return lambda x, *rest: _resized(device, operator, x, rest)

    return {operator: kernel(operator) for operator in map(operator_named, ("im2col", "col2im"))}


def _resized(device: EmulatedDevice, operator: Any, x: torch.Tensor, rest: Any) -> torch.Tensor:  # noqa: ANN401
    size = operator(torch.empty(x.shape, dtype=x.dtype, device="meta"), *rest).shape
    first = device.tensor((x.numel(),), (1,), x.dtype)
    _copy = x.contiguous()
    if size.numel() > x.numel():
        return torch.empty(size, dtype=x.dtype, device=x.device)
    return strided_view(first, size, torch.empty(size, device="meta").stride(), 0)
