"""Tables of operators by name: their temporaries, the kernels that are more than a plan, and overrides above autograd.

A kernel or an override runs instead of C++, where C++ does something else for CUDA than for a device that it does not
know. Kernels run below autograd. Overrides run above it, so the operators that they call have their own backward.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace import storages
from oomdoctor.engines.trace.kernels import (
    attention,
    convolutions,
    decompositions,
    finding,
    fourier,
    indexing,
    losses,
    matrix_products,
    normalization,
    quantization,
    random_draws,
    recurrent,
    reductions,
    sorting,
    transformer,
)
from oomdoctor.engines.trace.layouts import adds_in_place, meta_like, plain_name, resize
from oomdoctor.engines.trace.op_trace import NO_TEMPORARIES
from oomdoctor.engines.trace.refusals import sparse_refusals, untraceable
from oomdoctor.engines.trace.torch_internals import (
    HOST_VIEWS,
    check_ordinal,
    operator_named,
    run_host_view,
    zero_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, Temporaries

_TEMPORARIES: Final = {
    **attention.TEMPORARIES,
    **convolutions.TEMPORARIES,
    **decompositions.TEMPORARIES,
    **finding.TEMPORARIES,
    **fourier.TEMPORARIES,
    **indexing.TEMPORARIES,
    **losses.TEMPORARIES,
    **matrix_products.TEMPORARIES,
    **normalization.TEMPORARIES,
    **random_draws.TEMPORARIES,
    **reductions.TEMPORARIES,
    **sorting.TEMPORARIES,
}
_DATA_DEPENDENT: Final = ("unique_dim",)
_MATRIX: Final = 2


def temporaries_of(call: OperatorCall) -> Temporaries:
    """Return the temporaries of a call."""
    function = _TEMPORARIES.get(plain_name(call.operator))
    return function(call) if function else NO_TEMPORARIES


def assumption_of(operator: Any, args: Sequence[Any]) -> str | None:  # noqa: ANN401 - an operator
    """Return which library's work area is counted by a rule, or as 0, by its name in results; None for none."""
    name = plain_name(operator)
    if fourier.needs_work_area(name, args):
        return "cufft"
    return "cusolver" if decompositions.asks_for_work_area(name, args) else None


def has_temporaries(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Return whether some call of an operator may have temporaries."""
    return plain_name(operator) in _TEMPORARIES


def kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Return the kernels that are more than a plan, by operator; NotImplemented leaves a call to a plan."""
    named: KernelsByName = {
        "empty.memory_format": partial(_empty, device),
        "empty_strided": partial(_empty_strided, device),
        "_efficientzerotensor": _zero_tensor,
        "resize_": partial(_resize, device),
        "_copy_from": partial(_copy, device),
        "_to_copy": partial(_to_copy, device),
        "_local_scalar_dense": partial(_read_scalar, device),
        "equal": partial(_compare, device),
        "add.Tensor": _add,
        "abs.out": _absolute,
        "angle": _angle,
        **convolutions.kernels(device),
        **decompositions.kernels(),
        **finding.kernels(device),
        **indexing.kernels(device),
        **losses.kernels(),
        **matrix_products.kernels(),
        **normalization.kernels(device),
        **quantization.kernels(),
        **random_draws.kernels(device),
        **recurrent.kernels(),
        **reductions.kernels(),
        **sorting.kernels(device),
        **storages.kernels(),
    }
    found: dict[object, Callable[..., Any]] = {operator_named(name): kernel for name, kernel in named.items()}
    found |= {operator: partial(run_host_view, operator) for operator in map(operator_named, HOST_VIEWS)}
    return found | {operator: partial(_refuse, operator) for operator in map(operator_named, _DATA_DEPENDENT)}


def _absolute(x: torch.Tensor, *, out: torch.Tensor) -> Any:  # noqa: ANN401 - or NotImplemented
    """Compute complex numbers besides the result. Source: `unary_op_impl_with_complex_to_float_out`, UnaryOps.cpp."""
    if not x.is_complex() or out.is_complex() or out.shape != x.shape:
        return NotImplemented
    torch.empty_like(x)
    return out


def _angle(x: torch.Tensor) -> Any:  # noqa: ANN401 - or NotImplemented
    """Compute complex numbers before the result is allocated. Source: as `abs`."""
    if not x.is_complex():
        return NotImplemented
    whole = torch.empty_like(x)
    return torch.empty_like(whole, dtype=x.dtype.to_real())


def _empty(
    ours: EmulatedDevice,
    /,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **__: object,
) -> torch.Tensor:
    check_ordinal(device)
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return ours.tensor(meta.shape, meta.stride(), meta.dtype)


def _empty_strided(
    ours: EmulatedDevice,
    /,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    *_: object,
    device: torch.device | None = None,
    **__: object,
) -> torch.Tensor:
    check_ordinal(device)
    return ours.tensor(size, stride, dtype or torch.get_default_dtype())


def _zero_tensor(
    size: Sequence[int], dtype: torch.dtype | None = None, *_: object, device: torch.device | None = None, **__: object
) -> torch.Tensor:
    check_ordinal(device)
    return zero_tensor(size, dtype or torch.get_default_dtype())


def _resize(
    device: EmulatedDevice, tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    meta = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    resize(device, tensor, tuple(meta.shape), meta.stride())
    return tensor


def _copy(device: EmulatedDevice, source: torch.Tensor, target: torch.Tensor, *_: object) -> torch.Tensor:
    """Copy: to the host zeros, from the host through a contiguous copy where the layouts differ.

    Source: `copy_kernel_cuda` and `copy_requires_temporaries`, Copy.cu.
    """
    if source.shape != target.shape:
        source.expand(target.shape)  # which raises where it cannot be
    if target.is_cpu:
        is_true = bool(target.numel()) and device.note_read()
        target.fill_(is_true and target.numel() == 1 and source.dtype is torch.bool)
    elif source.is_cpu:
        is_alike = source.dtype == target.dtype and source.stride() == target.stride()
        if not is_alike and not target.is_contiguous():
            device.block(target.numel() * target.element_size())
    return target


def _to_copy(
    ours: EmulatedDevice,
    /,
    source: torch.Tensor,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> Any:  # noqa: ANN401 - or NotImplemented
    """Copy between host and device with the strides kept, which C++ does not do for XLA; else leave it to a plan."""
    if not source.is_cpu and (device is None or device.type != "cpu"):
        return NotImplemented
    like = meta_like(source)
    meta = torch.ops.aten._to_copy(like, dtype=dtype, memory_format=memory_format)  # noqa: SLF001 - the operator itself
    if source.is_cpu:
        return ours.tensor(meta.shape, meta.stride(), meta.dtype)
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype).copy_(source)


def _read_scalar(device: EmulatedDevice, tensor: torch.Tensor) -> float | bool:
    """Return zero to `item()`, `float()` and `bool()`, as a null GPU does, and True where that passes a check."""
    is_true = device.note_read()
    return torch.zeros((), dtype=tensor.dtype).item() if tensor.dtype is not torch.bool else is_true


def _compare(device: EmulatedDevice, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors are equal: what is read is zero, unless a check asks or there is nothing to read."""
    if first.shape != second.shape or not first.numel():
        return first.shape == second.shape
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        return True
    (first == second).all()
    return device.note_read()


def _add(first: torch.Tensor, second: torch.Tensor, alpha: float = 1) -> Any:  # noqa: ANN401 - or NotImplemented
    """Add in place where autograd's engine would; else leave it to a plan."""
    return first if alpha == 1 and adds_in_place(first, second) else NotImplemented


def _refuse(operator: object, *_: object, **__: object) -> None:
    raise untraceable(operator, "the shape of its result depends on data")


def autograd_overrides(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Return the functions above autograd, by the operator's name."""

    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401 - PyTorch's signature
        if device.op_trace is not None:
            device.op_trace.chosen(lambda card: attention.chosen_attention_kernel(card, *args, **kwargs))
        return attention.scaled_dot_product_attention(device.card, *args, **kwargs)

    return {
        **recurrent.overrides(device),
        **convolutions.overrides(),
        **normalization.overrides(),
        **sparse_refusals(),
        **transformer.overrides(device),
        "linear": _linear,
        "dropout": _dropout,
        "scaled_dot_product_attention": attend,
        "softmax.int": partial(_softmax, torch.ops.aten._softmax),  # noqa: SLF001 - called by `softmax`
        "log_softmax.int": partial(_softmax, torch.ops.aten._log_softmax),  # noqa: SLF001 - the same
    }


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Fuse the bias where the input is contiguous, which C++ does for all but XLA. Source: Linear.cpp."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == _MATRIX:
        return torch.addmm(bias, x, weight.t())
    if bias.dim() == 1 and x.is_contiguous():
        flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
        return flat.view(*x.shape[:-1], flat.shape[-1])
    return torch.matmul(x, weight.t()).add_(bias)


def _softmax(operator: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:  # noqa: ANN401
    """Cast fp16 to fp32 in the kernel itself, other types before it. Source: `softmax`, SoftMax.cpp."""
    if x.dtype is torch.float16 and dtype is torch.float32:
        wide: torch.Tensor = operator(x, dim, True)  # noqa: FBT003 - from half to float
        return wide
    plain: torch.Tensor = operator(x if dtype is None else x.to(dtype), dim, False)  # noqa: FBT003
    return plain


def _dropout(x: torch.Tensor, probability: float, train: bool) -> torch.Tensor:  # noqa: FBT001
    """Run one kernel that keeps a mask of bools. Source: `is_fused_kernel_acceptable`, Dropout.cpp."""
    if not train or probability == 0 or x.numel() == 0:
        return x
    if probability == 1:
        return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))
    return torch.native_dropout(x, probability, train)[0]
