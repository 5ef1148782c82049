"""Indexing, searching and copying: index tensors as kernels need them, `index_put`, `isin`, `roll`, embeddings.

Writing to indexed places, several of which may be the same, sorts the indices, so that each place is written once; so
does the backward of embeddings and of bags of them.

Source: `expandTensors`, IndexingUtils.h; `make_info`, `AdvancedIndex` and `_index_put_impl_`,
TensorAdvancedIndexing.cpp; `index_put_with_sort_kernel` and `makeLinearIndex`, Indexing.cu;
`searchsorted_maybe_trim_input_tensors`, BucketizationUtils.h; `isin_default_kernel_gpu`, TensorCompare.cu, and
`isin_Tensor_Tensor_out`, TensorCompare.cpp; `_histc_cuda`, SummaryOps.cu; `roll_cuda`, TensorTransformations.cu, and
`roll_common`, TensorTransformations.h; `embedding_dense_backward_cuda`,
Embedding.cu; `embedding_backward_cuda_kernel`, EmbeddingBackwardKernel.cu; `_embedding_bag_cuda` and
`embedding_bag_backward_cuda_sum_avg`, EmbeddingBag.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.engines.trace.kernels.finding import are_masks, places_of_masks
from oomdoctor.engines.trace.kernels.sorting import (
    IS_NEW,
    SORT_PAIRS,
    exclusive_sum_bytes,
    radix_sort_bytes,
    scan_by_key_bytes,
    unique_by_key_bytes,
)
from oomdoctor.engines.trace.layouts import HALF_TYPES, copied_bytes
from oomdoctor.engines.trace.op_trace import NO_TEMPORARIES, Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

_INDEX_BYTES: Final = 8
_BOTH_ENDS_AT_ONCE: Final = (2, 7)
"""One kernel finds the least and the largest number in 2.15, two do in 2.6; between them nothing is known."""


def _copied_indices(call: OperatorCall) -> Temporaries:
    """Return the copies of indices that are not of 64 bits, or not laid out alike."""
    given = [index for index in call.args[1] if index is not None]
    widened = tuple(index.numel() * _INDEX_BYTES for index in given if index.dtype is torch.int32)
    metas = [torch.empty_strided(index.shape, index.stride(), device="meta") for index in given]
    broadcast = torch.broadcast_tensors(*metas)  # type: ignore[no-untyped-call]
    is_alike = len({index.stride() for index in broadcast}) <= 1
    copied = tuple(i.numel() * _INDEX_BYTES for i in broadcast if not (is_alike or i.is_contiguous()))
    return Temporaries(before=(*widened, *copied))


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "_index_put_impl_": partial(_index_put, device),
        "isin.Tensor_Tensor": _isin,
        "histc": _histc,
        "roll": _roll,
    }


def _index_put(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    device: EmulatedDevice,
    target: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    value: torch.Tensor,
    accumulate: bool = False,  # noqa: FBT001, FBT002
    unsafe: bool = False,  # noqa: FBT001, FBT002
) -> Any:  # noqa: ANN401 - or NotImplemented
    has_masks = are_masks(indices) and not value.is_cpu  # a number of the host fills
    if has_masks:
        indices = places_of_masks(target, indices)
    is_sorted = accumulate or torch.are_deterministic_algorithms_enabled()
    if not is_sorted or are_masks(indices) or any(index is not None and index.is_cpu for index in indices):
        plain = torch.ops.aten._index_put_impl_
        return plain(target, indices, value, accumulate, unsafe) if has_masks else NotImplemented
    value = value.to(target.device)
    whole = target if target.is_contiguous() else target.contiguous()
    linear, is_permuted, places, width = _linear_index(whole, indices, is_checked=not unsafe)
    del indices
    expanded = value.expand(places).contiguous() if value.numel() < prod(places) else value.contiguous()
    if linear.numel() and width:
        permuted = torch.empty_like(whole, memory_format=torch.contiguous_format) if is_permuted else None
        bits = max(1, ((whole.numel() - 1) // width).bit_length())
        taken = [torch.empty_like(linear, memory_format=torch.contiguous_format) for _ in range(3)]
        device.call_library(SORT_PAIRS, len(linear), _INDEX_BYTES, _INDEX_BYTES, bits)
        del taken
        del permuted
    del expanded
    return target


def _linear_index(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], *, is_checked: bool
) -> tuple[torch.Tensor, bool, list[int], int]:
    """Return the linear indices, whether dimensions were permuted, the values' shape, and the elements of a row."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    wide = [index.long() if index.dtype is torch.int32 else index for _, index in given]
    tensors = torch.broadcast_tensors(*wide)  # type: ignore[no-untyped-call]
    dims = [dim for dim, _ in given]
    is_permuted = dims != list(range(dims[0], dims[0] + len(dims)))
    linear = _summed(target, dims, tensors, is_checked=is_checked)
    before = [] if is_permuted else list(target.shape[: dims[0]])
    rest = [length for dim, length in enumerate(target.shape) if dim not in dims]
    after = rest[len(before) :]
    width = prod(after)
    return linear.reshape(-1), is_permuted, [*before, *linear.shape, *after], width


def _summed(
    target: torch.Tensor, dims: Sequence[int], tensors: Sequence[torch.Tensor], *, is_checked: bool
) -> torch.Tensor:
    """Return the sum of the indices, each wrapped and multiplied by its stride."""
    linear = _scaled(target, dims[0], tensors[0], is_checked=is_checked)
    for dim, index in zip(dims[1:], tensors[1:], strict=True):
        linear.add_(_scaled(target, dim, index, is_checked=is_checked))
    return linear


def _scaled(target: torch.Tensor, dim: int, index: torch.Tensor, *, is_checked: bool) -> torch.Tensor:
    if is_checked and index.numel():
        _check_bounds(index)
    return index.remainder(target.shape[dim]) * target.stride(dim)


def _check_bounds(index: torch.Tensor) -> None:
    """Allocate what the check of the bounds takes, which runs on the card."""
    if _BOTH_ENDS_AT_ONCE <= TORCH:
        least, largest = index.aminmax()
        _ = largest < 1
        del _
        _ = least >= 0
        return
    for end in (torch.max, torch.min):
        found = end(index)
        _ = found < 1
        del found, _


def _searched(call: OperatorCall) -> Temporaries:
    """Return the contiguous copies and the conversions to one type of the numbers and the boundaries."""
    given = [value for value in call.args[:2] if isinstance(value, torch.Tensor) and value.dim()]
    copied = copied_bytes(given)
    if len({t.dtype for t in given}) > 1:
        dtype = torch.promote_types(given[0].dtype, given[1].dtype)
        copied += tuple(t.numel() * dtype.itemsize for t in given if t.dtype is not dtype)
    return Temporaries(after=copied)


def _isin(elements: torch.Tensor, tested: torch.Tensor, **_: object) -> Any:  # noqa: ANN401 - or NotImplemented
    """Compare each with each where they are few; else they are sorted, as planned on `meta`."""
    if tested.numel() >= 10 * elements.numel() ** 0.145:
        return NotImplemented
    result = torch.empty(elements.shape, dtype=torch.bool, device=elements.device)
    return result.copy_((elements.unsqueeze(-1) == tested.view(-1)).any(-1))


def _histc(x: torch.Tensor, bins: int = 100, least: float = 0, largest: float = 0) -> torch.Tensor:
    """Find the range, where it is not given."""
    result = torch.empty(bins, dtype=x.dtype, device=x.device)
    if least == largest and x.numel():
        _min_and_max(x)
    return result


def _min_and_max(x: torch.Tensor) -> None:
    if _BOTH_ENDS_AT_ONCE <= TORCH:
        x.aminmax()
        return
    for find in (torch.min, torch.max):
        find(x).item()


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Roll one dimension after the other, or all elements where none is named."""
    if not dims:
        return _rolled(x.contiguous().view(-1)).view(x.shape)
    first = _rolled(x)
    return _roll(first, shifts[1:], dims[1:]) if len(dims) > 1 else first


def _rolled(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    return torch.empty_like(x)


_MOST_UNSORTED: Final = 3072
_ROWS_A_PART: Final = 10
_WARP_THREADS: Final = 32
_MOST_THREADS: Final = 1024
_ATOMIC_BLOCKS_A_PROCESSOR: Final = 4
_MODE_MAX: Final = 2


class _SortedRows(NamedTuple):
    """Rows of a gradient that are added to rows of a weight, once their indices are sorted.

    Attributes:
        card: The card.
        added: Number of rows that are added.
        index_bytes: Bytes of an index.
        rows: Rows of the weight.
        width: Numbers in a row.
        dtype: Type of the numbers.
        is_in_bags: Whether several rows belong to one bag.
    """

    card: Card
    added: int
    index_bytes: int
    rows: int
    width: int
    dtype: torch.dtype
    is_in_bags: bool = False

    def temporaries(self, copies: tuple[int, ...], *, by_frequency: bool) -> Temporaries:
        """Return the copies and the sort before the weight's gradient is allocated, and the sums after it."""
        sorting = self._sorting(len(copies), by_frequency=by_frequency)
        held = len(copies) + sum(step >= 0 for step in sorting)
        each = self.added * self.index_bytes
        segments = min(self.added, self.rows)
        parts = self.added // _ROWS_A_PART + segments
        unique = (each, 8, each, unique_by_key_bytes(self.card, self.added, self.index_bytes), -4 - held, -3 - held)
        segment_bytes = segments * self.index_bytes
        scan = (segment_bytes, segment_bytes, exclusive_sum_bytes(segments, self.index_bytes), -7 - held)
        return Temporaries(
            (*copies, *sorting), ((*unique, *scan, 8, parts * self.index_bytes, *self._sums(segments, parts)))
        )

    def _sorting(self, held: int, *, by_frequency: bool) -> tuple[int, ...]:
        """Return the steps of the sort, after `held` other allocations."""
        each = self.added * self.index_bytes
        bits = self.rows.bit_length() if IS_NEW else 8 * self.index_bytes
        sort_bytes = radix_sort_bytes(self.card, self.added, self.index_bytes, self.index_bytes, bits)
        steps: tuple[int, ...] = (each, each, each, sort_bytes, -4 - held, -3 - held)
        if by_frequency:
            scan_bytes = scan_by_key_bytes(self.added)
            steps += (each, scan_bytes, -6 - held, scan_bytes, -7 - held)
        return steps

    def _sums(self, segments: int, parts: int) -> tuple[int, ...]:
        """Return the sums of the parts, or the segment of each part where too few segments fill the card."""
        width = max(1, self.dtype.itemsize if self.dtype is torch.float64 else 4) * self.width
        row_threads = -(-self.width // _WARP_THREADS) * _WARP_THREADS
        blocks = -(-segments * row_threads // min(row_threads, _MOST_THREADS))
        few = blocks < self.card.sm_count * _ATOMIC_BLOCKS_A_PROCESSOR and parts > 4 * blocks
        if not IS_NEW or self.is_in_bags or not few or torch.are_deterministic_algorithms_enabled():
            return (parts * width,)
        in_fp32 = (self.rows * width,) if self.dtype in HALF_TYPES else ()
        return (parts * self.index_bytes, *in_fp32)


def _embedding_backward(call: OperatorCall) -> Temporaries:
    gradient, indices, rows = call.args[:3]
    count, by_frequency = indices.numel(), call.args[4] if len(call.args) > 4 else False  # noqa: PLR2004 - its place
    copies = copied_bytes((gradient, indices))
    if count <= _MOST_UNSORTED and not by_frequency:
        return Temporaries(copies)
    width = gradient.numel() // count
    added = _SortedRows(call.card, count, indices.element_size(), rows, width, gradient.dtype)
    return added.temporaries(copies, by_frequency=by_frequency)


def _bags(_: OperatorCall) -> Temporaries:
    """Return the order: the sizes of the bags and the bag of each row are allocated before the output."""
    return Temporaries(order=[2, 1, 0, 3])


def _bag_backward(call: OperatorCall) -> Temporaries:
    gradient, indices, rows, by_frequency, mode = (call.args[place] for place in (0, 1, 6, 7, 8))
    if not indices.numel():
        return NO_TEMPORARIES
    copies = copied_bytes((gradient,))
    if mode == _MODE_MAX:
        return Temporaries(copies)
    width, index_bytes = gradient.shape[-1], indices.element_size()
    added = _SortedRows(call.card, indices.numel(), index_bytes, rows, width, gradient.dtype, is_in_bags=True)
    return added.temporaries(copies, by_frequency=by_frequency)


TEMPORARIES: Final[TemporariesByName] = {
    **dict.fromkeys(("index", "_index_put_impl_"), _copied_indices),
    **dict.fromkeys(("searchsorted", "bucketize"), _searched),
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bag_backward,
    "_embedding_bag_dense_backward": _bag_backward,
}
