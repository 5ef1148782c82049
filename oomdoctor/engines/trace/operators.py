"""Tables of operators by name: their temporaries, the kernels that are more than a plan, and overrides above autograd.

Each takes CUDA's road here. They stand above autograd, so what they are made of has its own backward.

Source: `unary_op_impl_with_complex_to_float_out`, UnaryOps.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.kernels.attention import ATTENTION_TEMPORARIES as ATTENTION_MODELS
from oomdoctor.engines.trace.kernels.attention import chosen_attention_kernel, scaled_dot_product_attention
from oomdoctor.engines.trace.kernels.convolutions import (
    convolution_double_backward,
    convolution_kernels,
    window_kernels,
)
from oomdoctor.engines.trace.kernels.embedding import BAG_TEMPORARIES as EMBEDDING_BAGS_MODELS
from oomdoctor.engines.trace.kernels.embedding import EMBEDDING_TEMPORARIES as EMBEDDING_MODELS
from oomdoctor.engines.trace.kernels.indexing import INDEX_TEMPORARIES as INDEXING_MODELS
from oomdoctor.engines.trace.kernels.indexing import SEARCH_TEMPORARIES as SEARCHING_MODELS
from oomdoctor.engines.trace.kernels.indexing import copy_kernels as moving_kernels
from oomdoctor.engines.trace.kernels.indexing import index_kernels as indexing_kernels
from oomdoctor.engines.trace.kernels.indexing import search_kernels as searching_kernels
from oomdoctor.engines.trace.kernels.losses import LOSS_TEMPORARIES as LOSSES_MODELS
from oomdoctor.engines.trace.kernels.losses import ctc_kernels
from oomdoctor.engines.trace.kernels.losses import distance_kernels as distances_kernels
from oomdoctor.engines.trace.kernels.losses import loss_kernels as losses_kernels
from oomdoctor.engines.trace.kernels.matrix_products import MATRIX_PRODUCT_TEMPORARIES as BLAS_MODELS
from oomdoctor.engines.trace.kernels.matrix_products import trilinear_kernels
from oomdoctor.engines.trace.kernels.normalization import GROUP_NORM_TEMPORARIES as GROUP_NORM_MODELS
from oomdoctor.engines.trace.kernels.normalization import LAYER_NORM_TEMPORARIES as LAYER_NORM_MODELS
from oomdoctor.engines.trace.kernels.normalization import SOFTMAX_TEMPORARIES as NORMALIZATION_MODELS
from oomdoctor.engines.trace.kernels.normalization import batch_norm_kernels, batch_norm_overrides
from oomdoctor.engines.trace.kernels.pooling import POOLING_TEMPORARIES as POOLING_MODELS
from oomdoctor.engines.trace.kernels.pooling import UPSAMPLING_TEMPORARIES as RESAMPLING_MODELS
from oomdoctor.engines.trace.kernels.random_draws import DROPOUT_TEMPORARIES as DROPOUT_STATE_MODELS
from oomdoctor.engines.trace.kernels.random_draws import random_kernels as drawing_kernels
from oomdoctor.engines.trace.kernels.recurrent import recurrent_kernels, recurrent_overrides
from oomdoctor.engines.trace.kernels.reductions import NORM_TEMPORARIES as NORMS_MODELS
from oomdoctor.engines.trace.kernels.reductions import REDUCTION_TEMPORARIES as REDUCING_MODELS
from oomdoctor.engines.trace.kernels.reductions import reduction_kernels as reducing_kernels
from oomdoctor.engines.trace.kernels.scans import SCAN_TEMPORARIES as SCANS_MODELS
from oomdoctor.engines.trace.kernels.scans import scan_kernels as scanning_kernels
from oomdoctor.engines.trace.kernels.sorting import RADIX_SORT_TEMPORARIES as RADIX_SORT_MODELS
from oomdoctor.engines.trace.kernels.sorting import SELECTION_TEMPORARIES as SELECTION_MODELS
from oomdoctor.engines.trace.kernels.sorting import sorting_kernels
from oomdoctor.engines.trace.layouts import adds_in_place, resize
from oomdoctor.engines.trace.refusals import sparse_refusals, untraceable
from oomdoctor.engines.trace.temporaries import NO_TEMPORARIES
from oomdoctor.engines.trace.torch_internals import HOST_VIEWS, operator_named, run_host_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.temporaries import Call, Temporaries


_TEMPORARIES = {
    **BLAS_MODELS,
    **REDUCING_MODELS,
    **ATTENTION_MODELS,
    **EMBEDDING_MODELS,
    **EMBEDDING_BAGS_MODELS,
    **POOLING_MODELS,
    **NORMALIZATION_MODELS,
    **GROUP_NORM_MODELS,
    **NORMS_MODELS,
    **DROPOUT_STATE_MODELS,
    **INDEXING_MODELS,
    **LAYER_NORM_MODELS,
    **LOSSES_MODELS,
    **RADIX_SORT_MODELS,
    **RESAMPLING_MODELS,
    **SCANS_MODELS,
    **SEARCHING_MODELS,
    **SELECTION_MODELS,
}


def temporaries_of(call: Call) -> Temporaries:
    """What a call takes."""
    model = _TEMPORARIES.get(_operator_name(call.operator))
    return model(call) if model else NO_TEMPORARIES


def has_temporaries(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Whether an operator may take something besides its results."""
    return _operator_name(operator) in _TEMPORARIES


def _operator_name(operator: Any) -> str:  # noqa: ANN401 - an operator
    return str(operator.name().partition(".")[0].removeprefix("aten::"))


def _complex_kernels() -> dict[str, Callable[..., Any]]:
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


def composed_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator. One that returns NotImplemented leaves the call to a plan."""
    named = {
        **batch_norm_kernels(),
        **_complex_kernels(),
        **ctc_kernels(),
        **distances_kernels(),
        **drawing_kernels(device),
        **indexing_kernels(device),
        **losses_kernels(),
        **moving_kernels(),
        **reducing_kernels(),
        **scanning_kernels(device),
        **searching_kernels(),
        **sorting_kernels(device),
        **trilinear_kernels(),
    }
    return {operator: kernel for name, kernel in named.items() if (operator := operator_named(name)) is not None}


_DATA_DEPENDENT: Final = (
    "nonzero", "masked_select", "unique_dim", "_unique", "_unique2", "unique_consecutive",
)  # fmt: skip
_HALVES: Final = (torch.float16, torch.bfloat16)


def special_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator. One that returns NotImplemented leaves the call to a plan."""
    named: dict[str, Callable[..., Any]] = {
        "empty.memory_format": partial(_empty_kernel, device),
        "empty_strided": partial(_empty_strided_kernel, device),
        "resize_": partial(_resize_kernel, device),
        "_copy_from": partial(_copy_kernel, device),
        "_to_copy": partial(_to_copy_kernel, device),
        "_local_scalar_dense": partial(_read_scalar, device),
        "add.Tensor": _add_kernel,
        "native_layer_norm": _layer_norm_kernel,
        "_weight_norm_interface_backward": _weight_norm_backward,
    }
    found: dict[object, Callable[..., Any]] = {operator_named(name): kernel for name, kernel in named.items()}
    found |= composed_kernels(device)
    found |= convolution_kernels() | recurrent_kernels() | window_kernels(device)
    found |= {operator: partial(run_host_view, operator) for operator in map(operator_named, HOST_VIEWS)}
    return found | {operator: partial(_refuse, operator) for operator in map(operator_named, _DATA_DEPENDENT)}


def _empty_kernel(
    device: EmulatedDevice,
    /,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    memory_format: torch.memory_format | None = None,
    **__: object,
) -> torch.Tensor:
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return device.tensor(meta.shape, meta.stride(), meta.dtype)


def _empty_strided_kernel(
    device: EmulatedDevice,
    /,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    **__: object,
) -> torch.Tensor:
    return device.tensor(size, stride, dtype or torch.get_default_dtype())


def _resize_kernel(
    device: EmulatedDevice, tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    meta = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    resize(device, tensor, tuple(meta.shape), meta.stride())
    return tensor


def _copy_kernel(device: EmulatedDevice, source: torch.Tensor, target: torch.Tensor, *_: object) -> torch.Tensor:
    """A copy to the host reads zeros; one from it goes through a contiguous one where the layouts differ.

    Source: `copy_kernel_cuda` and `copy_requires_temporaries`, Copy.cu.
    """
    if target.is_cpu:
        device.reads += 1
        target.zero_()
    elif source.is_cpu:
        is_alike = source.dtype == target.dtype and source.stride() == target.stride()
        if not is_alike and not target.is_contiguous():
            device.block(target.numel() * target.element_size())
    return target


def _to_copy_kernel(
    ours: EmulatedDevice,
    /,
    source: torch.Tensor,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> Any:  # noqa: ANN401 - or NotImplemented
    """A copy keeps its strides, which C++ thinks XLA has none of. On the device it is a plan's."""
    if not source.is_cpu and (device is None or device.type != "cpu"):
        return NotImplemented
    like = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    meta = torch.ops.aten._to_copy(like, dtype=dtype, memory_format=memory_format)  # noqa: SLF001 - the operator itself
    if source.is_cpu:
        return ours.tensor(meta.shape, meta.stride(), meta.dtype)
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype).copy_(source)


def _read_scalar(device: EmulatedDevice, tensor: torch.Tensor) -> float | bool:
    """What `item()`, `float()` and `bool()` get: zero, as from a null GPU."""
    device.reads += 1
    return torch.zeros((), dtype=tensor.dtype).item()


def _add_kernel(first: torch.Tensor, second: torch.Tensor, alpha: float = 1) -> Any:  # noqa: ANN401 - or NotImplemented
    """Autograd's engine adds a gradient to what it has; all else is a plan's."""
    return first if alpha == 1 and adds_in_place(first, second) else NotImplemented


def _layer_norm_kernel(x: torch.Tensor, normalized_shape: Sequence[int], *_: object) -> tuple[torch.Tensor, ...]:
    """Output, mean and standard deviation of each row. Source: `layer_norm_cuda`, layer_norm_kernel.cu."""
    rank = len(normalized_shape)
    rows = (*x.shape[: x.dim() - rank], *(1,) * rank)
    x = x.contiguous()
    sums = torch.float32 if x.dtype in _HALVES else x.dtype
    return torch.empty_like(x), *(torch.empty(rows, dtype=sums, device=x.device) for _ in range(2))


def _weight_norm_backward(
    _: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, *__: object
) -> tuple[torch.Tensor, ...]:
    """PyTorch has no shapes of this for tensors without data."""
    return torch.empty_like(direction), torch.empty_like(length)


def _refuse(operator: object, *_: object, **__: object) -> None:
    raise untraceable(operator, "the shape of its result depends on data")


_MATRIX: Final = 2


def autograd_overrides(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Functions by the operator's name."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401 - PyTorch's signature
        if device.journal is not None:
            device.journal.chosen(lambda card: chosen_attention_kernel(card, *args, **kwargs))
        return scaled_dot_product_attention(device.card, *args, **kwargs)

    return {
        **recurrent_overrides(device),
        **batch_norm_overrides(),
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
