"""Layouts of tensors in memory: strides, dense and channels-last tensors, copies, resized storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.torch_internals import in_backward, reference_counts, restride

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice

HALF_TYPES: Final = (torch.float16, torch.bfloat16)
POINTWISE: Final = getattr(torch.Tag, "pointwise", None)


def accumulation_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which kernels add numbers of `dtype`: fp32 for the half types, else the type itself."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def suggested_layout(x: torch.Tensor) -> torch.memory_format:
    """Return channels last where `x` has that layout and no other. Source: `suggest_memory_format`, TensorBase.h."""
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format


def copied_bytes(given: Iterable[object], layout: torch.memory_format = torch.contiguous_format) -> tuple[int, ...]:
    """Return the bytes of the copy of each tensor that does not have a layout; others are skipped."""
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    return tuple(tensor.nbytes for tensor in tensors if not tensor.is_contiguous(memory_format=layout))


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a `meta` tensor of the same shape, strides and type."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def pointwise_result(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:  # noqa: ANN401
    """Return the result of a pointwise operator, on `meta`; None where its layout is not plain.

    PyTorch's own functions for this are in Python and import SymPy. The result's shape and strides are those of the
    arguments, where these agree or are contiguous; its type is that of the operator on tensors of one element.
    """
    if POINTWISE not in operator.tags or kwargs or any(isinstance(argument, list | tuple) for argument in args):
        return None
    if len(operator._schema.returns) != 1 or operator._schema.is_mutable:  # noqa: SLF001 - no public way
        return None
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    size = _common_size(tensors)
    stride = None if size is None else _common_stride(tensors, size)
    if size is None or stride is None:
        return None
    tiny = operator(*(_one_element(argument) if isinstance(argument, torch.Tensor) else argument for argument in args))
    return torch.empty_strided(size, stride, dtype=tiny.dtype, device="meta")


def _common_size(tensors: list[torch.Tensor]) -> torch.Size | None:
    """Return the shape that all broadcast to; None where they do not, for which the operator itself has the error."""
    rank = max((tensor.dim() for tensor in tensors), default=0)
    padded = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    lengths = [{length for length in column if length != 1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in lengths):
        return None
    return torch.Size([column.pop() if column else 1 for column in lengths])


def _common_stride(tensors: list[torch.Tensor], size: torch.Size) -> tuple[int, ...] | None:
    whole = [tensor for tensor in tensors if tensor.shape == size]
    if all(tensor.is_contiguous() for tensor in tensors):
        return torch.empty(size, device="meta").stride()
    strides = {tensor.stride() for tensor in whole}
    if len(whole) == sum(tensor.dim() > 0 for tensor in tensors) and len(strides) == 1 and is_dense(whole[0]):
        return strides.pop()
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory without gaps, in any order of dimensions."""
    expected = 1
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True


def _one_element(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones((1,) * tensor.dim(), dtype=tensor.dtype)


def resize(device: EmulatedDevice, tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Give a tensor another shape, and a larger storage if it needs one."""
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    needed = 0 if 0 in size else (tensor.storage_offset() + last + 1) * tensor.element_size()
    if needed <= tensor.untyped_storage().nbytes():
        restride(tensor, size, stride)
    else:
        tensor.data = device.tensor(size, stride, tensor.dtype)


_ONLY_ENGINE: Final = (3, 2)
"""Reference counts of a gradient (the engine, the call, Python) and of its storage (the tensor, Python)."""


_FORMULAS_WITH_SUMS: Final = (
    "LinalgCholeskyExBackward0", "LinalgLuBackward0", "LinalgLuFactorExBackward0", "LinalgLuSolveBackward0",
    "LinalgPinvBackward0", "LinalgQrBackward0", "LinalgSvdBackward0", "LogcumsumexpBackward0",
)  # fmt: skip
"""Nodes whose formula adds gradients itself, out of place. What the engine adds after one looks the same from here: the
engine's sums are far rarer behind these."""


def _is_in_formula_with_sums() -> bool:
    node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - no public name
    return node is not None and node.name() in _FORMULAS_WITH_SUMS


def adds_in_place(buffer: object, gradient: object) -> bool:
    """Return whether autograd's engine would add a gradient to its buffer in place on CUDA.

    It does where it is the only owner. From torch 2.10 on, a storage that Python has seen counts Python among its
    owners, so here the engine adds out of place. Source: `can_accumulate_inplace`, input_buffer.cpp.
    """
    if not (isinstance(gradient, torch.Tensor) and isinstance(buffer, torch.Tensor) and in_backward()):
        return False
    if (
        torch.is_grad_enabled()
        or buffer.shape != gradient.shape
        or buffer.dtype != gradient.dtype
        or _is_in_formula_with_sums()
    ):
        return False
    return reference_counts(buffer) == _ONLY_ENGINE and is_dense(buffer)
