"""Layouts of tensors in memory: strides, dense and channels-last tensors, copies, resized storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.torch_internals import in_backward, reference_counts, restride

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice

HALF_TYPES: Final = (torch.float16, torch.bfloat16)
CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layout with the channels of a place side by side, by the number of dimensions."""
POINTWISE: Final = getattr(torch.Tag, "pointwise", None)


def accumulation_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which kernels add numbers of `dtype`: fp32 for the half types, else the type itself."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def suggested_layout(x: torch.Tensor) -> torch.memory_format:
    """Return channels last where `x` has such strides. Source: `suggest_memory_format`, TensorBase.h."""
    layout = CHANNELS_LAST.get(x.dim())
    return layout if layout is not None and has_channels_last_strides(x) else torch.contiguous_format


def has_channels_last_strides(tensor: torch.Tensor) -> bool:
    """Return whether strides are those of channels last. Source: `is_channels_last_strides_2d`, MemoryFormat.h."""
    least = 0
    if tensor.stride(1) == 0:
        return False
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        step, length = tensor.stride(dim), tensor.shape[dim]
        if length == 0 or step < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = step * length
    return True


def is_channels_last_picture(x: torch.Tensor) -> bool:
    """Return whether a tensor is a batch of pictures in channels last: kernels that ask so know no volumes."""
    return x.dim() == _PICTURES and x.is_contiguous(memory_format=torch.channels_last)


_PICTURES: Final = 4


def copied_bytes(given: Iterable[object], layout: torch.memory_format = torch.contiguous_format) -> tuple[int, ...]:
    """Return the bytes of the copy of each tensor that does not have a layout; others are skipped."""
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    return tuple(tensor.nbytes for tensor in tensors if not tensor.is_contiguous(memory_format=layout))


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a `meta` tensor of the same shape, strides and type."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


_ITERATED: Final = {
    "elu_backward": (0, 5), "hardshrink_backward": (0, 1), "hardsigmoid_backward": (0, 1),
    "hardswish": (0,), "hardswish_backward": (0, 1), "hardtanh_backward": (0, 1), "leaky_relu": (0,),
    "leaky_relu_backward": (1, 0),
    "mish_backward": (0, 1), "softplus_backward": (0, 1), "softshrink_backward": (0, 1), "threshold_backward": (1, 0),
    "_prelu_kernel_backward": (1, 2, 0), "where": (0, 1, 2),
}  # fmt: skip
"""Positions of the operands of one iteration over elements, in the kernel's order, where the operator is not tagged as
pointwise or its order is another than that of its arguments. Source: Activation.cpp and TensorCompare.cpp."""
_WITH_NUMBERS: Final = tuple(
    f"::{name}.Scalar"
    for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "floor_divide", "fmod", "ge", "gt", "le", "lt", "ne",
        "remainder", "rsub",
    )
)  # fmt: skip
"""Pointwise operators that make a tensor of their number and iterate over it too."""
_LIKE_FIRST: Final = ("hardtanh", "log_sigmoid_backward", "native_dropout_backward")
"""Pointwise operators whose result is made with `empty_like` of their first argument."""


def pointwise_result(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:  # noqa: ANN401
    """Return the results of a pointwise operator, on `meta`; None where it is none, or its layout is not plain.

    PyTorch's own functions for this are in Python, import SymPy, and give some results other strides than CUDA does.
    The shape and the strides are those of an iteration over the operands; the types are those of the operator on
    tensors of one element.
    """
    if kwargs or any(isinstance(argument, list | tuple) for argument in args):
        return None
    operands = _operands(operator, args)
    size = None if operands is None else _common_size(operands)
    if operands is None or size is None or 0 in size:
        return None
    stride = _result_stride(operator, operands, size)
    if stride is None:
        return None
    tiny = operator(*(_one_element(argument) if isinstance(argument, torch.Tensor) else argument for argument in args))
    results = tiny if isinstance(tiny, tuple) else (tiny,)
    return [torch.empty_strided(size, stride, dtype=result.dtype, device="meta") for result in results]


def _operands(operator: Any, args: tuple[Any, ...]) -> list[torch.Tensor] | None:  # noqa: ANN401
    """Return what a pointwise operator iterates over; None for other operators, and those that write into arguments."""
    schema, name = operator._schema, plain_name(operator)  # noqa: SLF001 - no public way
    if schema.is_mutable:
        return None
    if name in _ITERATED:
        return [args[position] for position in _ITERATED[name]]
    if name in _LIKE_FIRST or (POINTWISE in operator.tags and len(schema.returns) == 1):
        tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
        return [*tensors, torch.empty((), device="meta")] if operator.name().endswith(_WITH_NUMBERS) else tensors
    return None


def plain_name(operator: Any) -> str:  # noqa: ANN401
    """Return the name of an operator, or of a library's function, without its namespace and its overload."""
    return str(operator.name().partition(".")[0].removeprefix("aten::"))


def _common_size(tensors: list[torch.Tensor]) -> torch.Size | None:
    """Return the shape that all broadcast to; None where they do not, for which the operator itself has the error."""
    rank = max((tensor.dim() for tensor in tensors), default=0)
    padded = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    lengths = [{length for length in column if length != 1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in lengths):
        return None
    return torch.Size([column.pop() if column else 1 for column in lengths])


def _result_stride(operator: Any, operands: list[torch.Tensor], size: torch.Size) -> tuple[int, ...] | None:  # noqa: ANN401
    """Return the strides of the result; None where they hang on an order of the operands that is not known."""
    name = plain_name(operator)
    if name in _LIKE_FIRST:
        return torch.empty_like(meta_like(operands[0])).stride() if operands[0].shape == size else None
    stride = iterated_stride(operands, size)
    if name in _ITERATED or stride == iterated_stride(operands[::-1], size):
        return stride
    return None


def iterated_stride(operands: Sequence[torch.Tensor], size: torch.Size) -> tuple[int, ...]:
    """Return the strides of a new result of an iteration over the elements of tensors.

    Source: `fast_set_up`, `reorder_dimensions` and `allocate_or_resize_outputs`, TensorIterator.cpp.

    Args:
        operands: What is iterated over, in the kernel's order.
        size: The shape that they broadcast to.
    """
    if all(operand.shape == size for operand in operands):
        if all(operand.is_contiguous() for operand in operands):
            return _contiguous_stride(size)
        if all(map(is_channels_last_picture, operands)):
            return torch.empty(size, device="meta", memory_format=torch.channels_last).stride()
        if len({operand.stride() for operand in operands}) == 1 and is_dense(operands[0]):
            return operands[0].stride()
    order = _from_fastest([_broadcast_stride(operand, size) for operand in operands], size)
    if order == [*reversed(range(len(size)))]:
        return _contiguous_stride(size)
    stride, step = [0] * len(size), 1
    for dim in order:
        stride[dim] = step
        step *= size[dim]
    return tuple(stride)


def _contiguous_stride(size: torch.Size) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


def _broadcast_stride(tensor: torch.Tensor, size: torch.Size) -> list[int]:
    """Return the strides of a tensor that is read as one of another shape: 0 where it is repeated."""
    missing = len(size) - tensor.dim()
    own = zip(tensor.stride(), tensor.shape, size[missing:], strict=True)
    return [0] * missing + [0 if length == 1 != whole else step for step, length, whole in own]


def _from_fastest(strides: list[list[int]], size: torch.Size) -> list[int]:
    """Sort dimensions by the operands' strides, by insertion: what is compared is in no order that all agree on."""
    order = [*reversed(range(len(size)))]
    for first in range(1, len(order)):
        here = first
        for before in reversed(range(first)):
            compared = _compare(order[before], order[here], strides, size)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[here] = order[here], order[before]
                here = before
    return order


def _compare(one: int, other: int, strides: list[list[int]], size: torch.Size) -> int:
    """Return 1 where one dimension is slower than another, -1 where it is faster, and 0 where no operand tells."""
    for stride in strides:
        if 0 in (stride[one], stride[other]):
            continue
        if stride[one] != stride[other]:
            return 1 if stride[one] > stride[other] else -1
        if size[one] > size[other]:
            return 1
    return 0


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
    "Atan2Backward0", "LinalgCholeskyExBackward0", "LinalgLuBackward0", "LinalgLuFactorExBackward0",
    "LinalgLuSolveBackward0", "LinalgPinvBackward0", "LinalgPolarBackward0", "LinalgQrBackward0", "LinalgSvdBackward0",
    "LogcumsumexpBackward0", "LuUnpackBackward0", "MvlgammaBackward0", "NativeGroupNormBackward0",
    "SpecialI1EBackward0", "SpecialModifiedBesselK1Backward0", "StdMeanBackward0", "TriangularSolveBackward0",
    "VarMeanBackward0",
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
