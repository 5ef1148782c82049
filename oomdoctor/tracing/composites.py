"""Operators that C++ makes up of others, and otherwise for CUDA than for a device it does not know.

Each takes CUDA's road here. They stand above autograd, so what they are made of has its own backward.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.attention import attend, kernel_of
from oomdoctor.tracing.compositions.batch_norm import batch_norm_roads
from oomdoctor.tracing.double_convolution import convolution_double_backward
from oomdoctor.tracing.recurrent_roads import recurrent_roads
from oomdoctor.tracing.refusals import sparse_refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice

_MATRIX: Final = 2


def composites(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Functions by the operator's name."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401 - PyTorch's signature
        if device.journal is not None:
            device.journal.chosen(lambda card: kernel_of(card, *args, **kwargs))
        return attend(device.card, *args, **kwargs)

    return {
        **recurrent_roads(device),
        **batch_norm_roads(),
        **sparse_refusals(),
        "linear": _linear,
        "dropout": _dropout,
        "_convolution_double_backward": convolution_double_backward,
        "scaled_dot_product_attention": attention,
        "softmax.int": partial(_softmax, torch.ops.aten._softmax),  # noqa: SLF001 - what it is made of
        "log_softmax.int": partial(_softmax, torch.ops.aten._log_softmax),  # noqa: SLF001 - the same
    }


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Fused with the bias where the input is contiguous, which C++ does for all but XLA. Source: Linear.cpp."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == _MATRIX:
        return torch.addmm(bias, x, weight.t())
    if bias.dim() == 1 and x.is_contiguous() and x.dim() > 1:
        flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
        return flat.view(*x.shape[:-1], flat.shape[-1])
    return torch.matmul(x, weight.t()).add_(bias)


def _softmax(operator: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:  # noqa: ANN401
    """From fp16 to fp32 in the kernel itself, and all else after a cast. Source: `softmax`, SoftMax.cpp."""
    if x.dtype is torch.float16 and dtype is torch.float32:
        wide: torch.Tensor = operator(x, dim, True)  # noqa: FBT003 - from half to float
        return wide
    plain: torch.Tensor = operator(x if dtype is None else x.to(dtype), dim, False)  # noqa: FBT003
    return plain


def _dropout(x: torch.Tensor, probability: float, train: bool) -> torch.Tensor:  # noqa: FBT001
    """One kernel that keeps a mask of bools. Source: `is_fused_kernel_acceptable`, Dropout.cpp."""
    if not train or probability == 0 or x.numel() == 0:
        return x
    if probability == 1:
        return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))
    return torch.native_dropout(x, probability, train)[0]
