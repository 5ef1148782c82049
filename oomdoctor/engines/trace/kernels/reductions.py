"""Reductions: partial results that blocks leave in global memory, and the operators that reduce.

Where a reduction has few results of many values, blocks write partial results to a buffer, which may be larger than the
input: every block of the grid writes one row. Operators besides copy what their kernel cannot read. What
`linalg_vector_norm` of a list takes was seen on null GPUs in torch 2.6 and 2.15.

Source: `setReduceConfig` and `ReduceConfig`, Reduce.cuh; `make_reduction`, ReduceOpsUtils.h; ReduceOps.cpp,
ReduceAllOps.cpp and the kernels Reduce*Kernel.cu; `linalg_vector_norm_out`, LinearAlgebra.cpp;
`foreach_tensor_norm_cuda`, ForeachReduceOp.cu; `logsumexp_out_impl`, ReduceOps.cpp; `count_nonzero_cuda`,
TensorAdvancedIndexing.cpp; `evenly_distribute_backward`, FunctionsManual.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key, partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.layouts import HALF_TYPES, meta_like
from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH, below_autograd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

_WARP: Final = 32
_MOST_THREADS: Final = 512
_FEWEST_VALUES: Final = 16
_MOST_VALUES: Final = 256
_VECTOR: Final = 4
LARGEST_32_BIT: Final = 2**31 - 1
_WORTH_A_VECTOR: Final = 128 if TORCH >= (2, 7) else 129
"""Fewest values that are read as vectors, in 2.15 and in 2.6; between them nothing is known."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """Dimensions of a reduction: lengths, and strides in elements, the reduced dimensions first."""

    sizes: list[int]
    strides: list[int]
    reduced: int  # number of reduced dimensions

    @property
    def outputs(self) -> int:
        return prod(self.sizes[self.reduced :])

    @property
    def values(self) -> int:
        return prod(self.sizes[: self.reduced])


def partial_results(  # noqa: PLR0913 - what a reduction is, and what came before
    card: Card,
    tensor: torch.Tensor,
    dims: Sequence[int] | None,
    item_bytes: int,
    vector: int = _VECTOR,
    *,
    held: int = 0,
    is_apart: bool = False,
) -> tuple[int, ...]:
    """Return the bytes of the buffer and of its semaphores; nothing where each result has one block.

    Args:
        card: The card on which it runs.
        tensor: The tensor that is reduced.
        dims: Dimensions that are reduced; None or none for all.
        item_bytes: Bytes of a partial result.
        vector: Values that a thread reads at once, where they are contiguous.
        held: Number of the kernel's allocations before.
        is_apart: Whether no result holds what is known of it before the end, such as the mean of a variance: what is
            reduced in parts keeps that in memory of its own.
    """
    if not tensor.numel():
        return ()
    rank = tensor.dim()
    chosen = {dim % max(rank, 1) for dim in dims} if dims else set(range(rank))
    axes = [
        (tensor.shape[dim], tensor.stride(dim), dim in chosen) for dim in reversed(range(rank))
    ]  # TensorIterator begins with the last dimension
    ordered = [axis for axis in sorted(axes, key=cmp_to_key(_compare_axes)) if axis[0] != 1]
    joined: list[tuple[int, int, bool]] = []
    for size, stride, is_reduced in ordered:
        if joined and joined[-1][2] == is_reduced and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1], is_reduced)
        else:
            joined.append((size, stride, is_reduced))
    joined = joined or [(1, 1, True)]
    loop = _Loop([axis[0] for axis in joined], [axis[1] for axis in joined], sum(axis[2] for axis in joined))
    parts = _parts(loop, tensor.element_size())
    steps = [loop.outputs * item_bytes] if is_apart and len(parts) > 1 else []
    taken = range(held + len(steps), held + len(steps))
    for part in parts:
        buffers = _buffers(card, part, item_bytes, vector)
        steps += [*(-1 - index for index in taken), *buffers]
        taken = range(taken.stop, taken.stop + len(buffers))
    return tuple(steps)


def _parts(loop: _Loop, element_bytes: int) -> list[_Loop]:
    """Return the loop in halves, and halves of those, until 32 bits reach each. Source: `SplitUntil32Bit`."""
    reach = [(size - 1) * stride * element_bytes for size, stride in zip(loop.sizes, loop.strides, strict=True)]
    if sum(reach) + 1 <= LARGEST_32_BIT:
        return [loop]
    at = max(range(len(reach)), key=reach.__getitem__)
    half = loop.sizes[at] // 2
    halves = ([*loop.sizes[:at], size, *loop.sizes[at + 1 :]] for size in (half, loop.sizes[at] - half))
    return [part for sizes in halves for part in _parts(_Loop(sizes, loop.strides, loop.reduced), element_bytes)]


def _compare_axes(first: tuple[int, int, bool], second: tuple[int, int, bool]) -> int:
    if first[2] != second[2]:
        return -1 if first[2] else 1
    if 0 in (first[1], second[1]):
        return 0
    return first[1] - second[1] or first[0] - second[0]


def _buffers(card: Card, loop: _Loop, item_bytes: int, input_vector: int) -> tuple[int, ...]:
    outputs, values = loop.outputs, loop.values
    along_input = loop.reduced == len(loop.sizes) or (loop.reduced > 0 and loop.strides[0] < loop.strides[loop.reduced])
    width, height = (values, outputs) if along_input else (outputs, values)
    vector = 1
    if along_input and loop.strides[0] == 1 and width >= _WORTH_A_VECTOR and loop.reduced == 1:
        width //= input_vector
    elif not along_input and loop.strides[loop.reduced] == 1:
        vector = _output_vector(loop)
        width //= vector
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    inputs_a_step, outputs_a_step = (block_width, 1) if along_input else (1, block_width)
    across_warps = -(-values // inputs_a_step) >= min(block_height * 16, _MOST_VALUES)
    if across_warps:
        inputs_a_step *= block_height
    else:
        outputs_a_step *= block_height
    a_thread = -(-values // inputs_a_step)
    grid = -(-(outputs // vector) // outputs_a_step)
    target = card.sm_count * (card.max_threads_per_sm // (block_width * block_height))
    if not across_warps or a_thread < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-a_thread // _FEWEST_VALUES)), -(-a_thread // _MOST_VALUES))
    if blocks <= 1:
        return ()
    rows = 1 if along_input else block_width * vector
    return item_bytes * outputs * blocks * rows, 4 * grid


def _output_vector(loop: _Loop) -> int:
    vector = _VECTOR
    numbers = [loop.sizes[loop.reduced], *(s for i, s in enumerate(loop.strides) if i != loop.reduced)]
    for number in numbers:
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    most_wide, most_high = (largest_power_of_two(min(length, threads)) for length in (width, height))
    block_width = min(most_wide, _WARP)
    block_height = min(most_high, threads // block_width)
    return min(most_wide, threads // block_height), block_height


def largest_power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number; 1 for numbers below it."""
    return 1 << (max(number, 1).bit_length() - 1)


_WORD: Final = 4
_INDEX_AND_VALUE: Final = 16
"""Bytes of an index of 64 bits, and of a value, padded to as much."""
_WELFORD_NUMBERS: Final = 4
"""Mean, squared differences, and the count twice, as an integer and as a floating-point number."""
_WELFORD_VECTOR: Final = 2 if TORCH >= (2, 7) else 1
"""Values that a thread reads at once for a variance: 2.6 reads no vectors, and 2.15 vectors of two."""
_TRUTHS_ARE_BOOLS: Final = TORCH >= (2, 7)
"""Partial results of `any` and `all` are bools in 2.15, and of the input's type in 2.6."""


def _sum(call: OperatorCall) -> Temporaries:
    """Sum in fp32, or in the result's type where that is larger, after a cast to it."""
    tensor, dtype = call.args[0], _result_type(call)
    is_read_as_it_is = tensor.dtype in (dtype, *HALF_TYPES) if dtype is torch.float32 else tensor.dtype is dtype
    return _partial(call, None if is_read_as_it_is else dtype, max(_WORD, dtype.itemsize))


def _whole_extreme(call: OperatorCall) -> Temporaries:
    """Reduce all elements to the least, the largest, or both."""
    both = 2 if len(call.results) > 1 else 1
    return _of_contiguous(call, both * call.args[0].element_size())


def _both_extremes(call: OperatorCall) -> Temporaries:
    if call.kwargs.get("dim") is None:
        return _whole_extreme(call)
    return _partial(call, None, 2 * call.args[0].element_size())


def _arg_extreme(call: OperatorCall) -> Temporaries:
    return _partial(call, None, _INDEX_AND_VALUE)


def _arg_extreme_of_all(call: OperatorCall) -> Temporaries:
    """Reduce a dimension, or all elements, flattened."""
    if _dims(call) is not None:
        return _arg_extreme(call)
    return _of_contiguous(call, _INDEX_AND_VALUE, flat=True)


def _variance(call: OperatorCall) -> Temporaries:
    return Temporaries(after=variance_results(call.card, call.args[0], _dims(call)))


def variance_results(card: Card, tensor: torch.Tensor, dims: Sequence[int] | None, *, held: int = 0) -> tuple[int, ...]:
    """Return the partial results of a variance, by Welford's algorithm, in fp32 or fp64; see `partial_results`."""
    item = _WELFORD_NUMBERS * max(_WORD, tensor.element_size())
    return partial_results(card, tensor, dims, item, _WELFORD_VECTOR, held=held, is_apart=True)


def _partial(call: OperatorCall, dtype: torch.dtype | None, item_bytes: int, *vector: int) -> Temporaries:
    tensor = meta_like(call.args[0])
    copy: tuple[int, ...] = ()
    if dtype is not None:
        tensor = tensor.to(dtype)
        copy = (tensor.numel() * tensor.element_size(),)
    return Temporaries(
        after=(*copy, *partial_results(call.card, tensor, _dims(call), item_bytes, *vector, held=len(copy)))
    )


def _of_contiguous(call: OperatorCall, item_bytes: int, *, flat: bool = False) -> Temporaries:
    tensor = meta_like(call.args[0])
    whole = tensor.reshape(-1) if flat else tensor.contiguous()
    is_copied = whole.untyped_storage()._cdata != tensor.untyped_storage()._cdata  # noqa: SLF001 - its identity
    copy = (whole.numel() * whole.element_size(),) if is_copied else ()
    return Temporaries(after=(*copy, *partial_results(call.card, whole, None, item_bytes, held=len(copy))))


def _dims(call: OperatorCall) -> Any:  # noqa: ANN401 - a list of integers, or None
    """Return the dimensions, given as one or several, by position or by name."""
    given = call.argument(1, "dim")
    if isinstance(given, bool) or not isinstance(given, int | list | tuple):
        return None
    return (given,) if isinstance(given, int) else given


def _result_type(call: OperatorCall) -> torch.dtype:
    result = call.kwargs.get("out", call.results[0])
    dtype: torch.dtype = result.dtype
    return dtype


_CHUNK: Final = 65536
_CHUNKS_OF_ALL: Final = (2, 7)


def _vector_norm(call: OperatorCall) -> Temporaries:
    """Sum in fp32 or fp64; the dimensions come after the order of the norm."""
    tensor, dims = call.args[0], call.args[2] if len(call.args) > 2 else None  # noqa: PLR2004 - their place
    return Temporaries(after=partial_results(call.card, tensor, dims, max(_WORD, tensor.element_size())))


def _foreach_norm(call: OperatorCall) -> Temporaries:
    """Take a partial norm of each chunk; newer versions first the offsets of each tensor's chunks."""
    tensors = call.args[0]
    chunks = [-(-tensor.numel() // _CHUNK) for tensor in tensors]
    if TORCH < _CHUNKS_OF_ALL:
        return Temporaries((len(tensors) * max(chunks) * _WORD,))
    return Temporaries(((len(tensors) + 1) * 8, sum(chunks) * _WORD))


TEMPORARIES: Final[TemporariesByName] = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod"), _sum),
    **dict.fromkeys(("amax", "amin"), (lambda call: _partial(call, None, call.args[0].element_size()))),
    # Reduce a dimension to value and index, or all elements to the value alone.
    **dict.fromkeys(("max", "min"), (lambda call: _arg_extreme(call) if len(call.args) > 1 else _whole_extreme(call))),
    "aminmax": _both_extremes,
    **dict.fromkeys(("argmax", "argmin"), _arg_extreme_of_all),
    **dict.fromkeys(
        ("any", "all"), (lambda call: _partial(call, None, 1 if _TRUTHS_ARE_BOOLS else call.args[0].element_size()))
    ),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _variance),
    "linalg_vector_norm": _vector_norm,
    "_foreach_norm": _foreach_norm,
}


_aten: Final[Any] = torch.ops.aten


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "logsumexp.out": _logsumexp,
        "count_nonzero.dim_IntList": _count_nonzero,
        "median": _median,
        "scatter_reduce.two": _scatter_reduce,
    }


def _median(x: torch.Tensor) -> Any:  # noqa: ANN401 - or NotImplemented
    """Sort all numbers, and take the last where it is NaN. Source: `median_impl`, Sorting.cpp of CUDA."""
    if not x.numel():
        return NotImplemented
    ordered = x.flatten().sort()[0]
    return torch.where(ordered[-1].isnan(), ordered[-1], ordered[(x.numel() - 1) // 2])


def _logsumexp(
    x: torch.Tensor,
    dims: list[int],
    keepdim: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Subtract the largest number first, so that nothing overflows."""
    if not x.dtype.is_floating_point:
        x = x.to(out.dtype)
    if not x.numel():
        return torch.sum(x.exp(), dims, keepdim, out=out)
    largest = torch.amax(x, dims, keepdim=True)
    squeezed = largest if keepdim else largest.squeeze(tuple(dims))
    squeezed.masked_fill_(squeezed.abs() == float("inf"), 0)
    torch.sum((x - largest).exp_(), dims, keepdim, out=out)
    return out.log_().add_(squeezed)


def _count_nonzero(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return (x if x.dtype is torch.bool else x != 0).sum(dims)


def _scatter_reduce(  # noqa: PLR0913 - PyTorch's signature
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:  # noqa: ANN401 - or NotImplemented
    """Count what is added to each place of a mean. Source: `scatter_reduce_two`, TensorAdvancedIndexing.cpp."""
    if reduce != "mean" or not index.numel():
        return NotImplemented
    result = torch.empty_like(x)
    ones = torch.ones_like(source)
    count = torch.ones_like(x) if include_self else torch.zeros_like(x)
    count.scatter_add_(dim, index, ones)
    count.masked_fill_(count == 0, 1)
    return result


def overrides() -> KernelsByName:
    """Return the functions above autograd of this family."""
    return {name: partial(_choose, getattr(_aten, name).default) for name in ("max", "min", "median", "nanmedian")}


def _choose(operator: Any, x: torch.Tensor) -> Any:  # noqa: ANN401
    return _WholeExtreme.apply(x, operator)


class _WholeExtreme(torch.autograd.Function):
    """The largest, the least or the middle of all elements, whose gradient goes to every element that equals it.

    C++ does so where a tensor is on CUDA.
    """

    @staticmethod
    def forward(x: torch.Tensor, operator: Any) -> Any:  # noqa: ANN401 - an operator
        """Run the operator below autograd."""
        with below_autograd():
            return operator(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:  # noqa: ANN401 - PyTorch's signature
        """Save the input and the result."""
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        """Divide the gradient among the elements that equal the result, or that are NaN if it is."""
        x, number = ctx.saved_tensors
        are_none, is_none = x.isnan(), number.isnan()
        mask = (x == number).logical_or_(are_none.logical_and_(is_none))
        places = mask.sum()
        return mask * (gradient / places), None
