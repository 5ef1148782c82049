"""Embeddings and bags of embeddings: their backward sorts the indices.

Source: `embedding_dense_backward_cuda`, Embedding.cu, and `embedding_backward_cuda_kernel`, EmbeddingBackwardKernel.cu.

Source: `_embedding_bag_cuda` and `embedding_bag_backward_cuda_sum_avg`, EmbeddingBag.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from oomdoctor.engines.trace.kernels.scans import IS_NEW, exclusive_sum_bytes, scan_by_key_bytes, unique_by_key_bytes
from oomdoctor.engines.trace.kernels.sorting import radix_sort_bytes
from oomdoctor.engines.trace.temporaries import NO_TEMPORARIES, Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.temporaries import Call


_NO_SORT: Final = 3072
_ROWS_A_PART: Final = 10
_WARP_THREADS: Final = 32
_MOST_THREADS: Final = 1024
_ATOMIC_BLOCKS_A_PROCESSOR: Final = 4
_HALVES: Final = (torch.float16, torch.bfloat16)


class SortedRows(NamedTuple):
    """Rows of a gradient that are added to rows of a weight, once their indices are sorted.

    Attributes:
        card: On what.
        added: How many rows are added.
        index_bytes: Bytes of an index.
        rows: Rows of the weight.
        width: Numbers in a row.
        dtype: Of the numbers.
        is_in_bags: Whether several rows belong to one bag.
    """

    card: Card
    added: int
    index_bytes: int
    rows: int
    width: int
    dtype: torch.dtype
    is_in_bags: bool = False

    def sorting(self, held: int, *, by_frequency: bool) -> tuple[int, ...]:
        """What is taken before the gradient of the weight; `held` allocations are there already."""
        each = self.added * self.index_bytes
        bits = self.rows.bit_length() if IS_NEW else 8 * self.index_bytes
        sort_bytes = radix_sort_bytes(self.card, self.added, self.index_bytes, self.index_bytes, bits)
        taken: tuple[int, ...] = (each, each, each, sort_bytes, -4 - held, -3 - held)
        if by_frequency:
            scan_bytes = scan_by_key_bytes(self.added)
            taken += (each, scan_bytes, -6 - held, scan_bytes, -7 - held)
        return taken

    def adding(self, held: int) -> tuple[int, ...]:
        """What is taken after it: the segments of equal indices, in parts, and the sums of the parts."""
        each = self.added * self.index_bytes
        segments = min(self.added, self.rows)
        parts = self.added // _ROWS_A_PART + segments
        unique = (each, 8, each, unique_by_key_bytes(self.added, self.index_bytes), -4 - held, -3 - held)
        segment_bytes = segments * self.index_bytes
        scan = (segment_bytes, segment_bytes, exclusive_sum_bytes(segments, self.index_bytes), -7 - held)
        return (*unique, *scan, 8, parts * self.index_bytes, *self._sums(segments, parts))

    def _sums(self, segments: int, parts: int) -> tuple[int, ...]:
        """Sums of the parts; or which segment each belongs to, where there are too few segments to fill the card."""
        width = max(1, self.dtype.itemsize if self.dtype is torch.float64 else 4) * self.width
        row_threads = -(-self.width // _WARP_THREADS) * _WARP_THREADS
        blocks = -(-segments * row_threads // min(row_threads, _MOST_THREADS))
        few = blocks < self.card.sm_count * _ATOMIC_BLOCKS_A_PROCESSOR and parts > 4 * blocks
        if not IS_NEW or self.is_in_bags or not few or torch.are_deterministic_algorithms_enabled():
            return (parts * width,)
        in_fp32 = (self.rows * width,) if self.dtype in _HALVES else ()
        return (parts * self.index_bytes, *in_fp32)


def _embedding_backward(call: Call) -> Temporaries:
    gradient, indices, rows = call.args[:3]
    count, by_frequency = indices.numel(), call.args[4] if len(call.args) > 4 else False  # noqa: PLR2004 - its place
    copies = tuple(t.numel() * t.element_size() for t in (gradient, indices) if not t.is_contiguous())
    if count <= _NO_SORT and not by_frequency:
        return Temporaries(copies)
    width = gradient.numel() // count
    add = SortedRows(call.card, count, indices.element_size(), rows, width, gradient.dtype)
    sorting = add.sorting(len(copies), by_frequency=by_frequency)
    held = len(copies) + sum(step >= 0 for step in sorting)
    return Temporaries((*copies, *sorting), add.adding(held))


EMBEDDING_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "embedding_dense_backward": _embedding_backward
}


_MAX: Final = 2


def _bags(_: Call) -> Temporaries:
    """The sizes of the bags and whose each row is go before the output."""
    return Temporaries(order=[2, 1, 0, 3])


def _bag_backward(call: Call) -> Temporaries:
    gradient, indices, rows, by_frequency, mode = (call.args[place] for place in (0, 1, 6, 7, 8))
    copies = () if gradient.is_contiguous() else (gradient.numel() * gradient.element_size(),)
    if not indices.numel():
        return NO_TEMPORARIES
    if mode == _MAX:
        return Temporaries(copies)
    width = gradient.shape[-1]
    add = SortedRows(call.card, indices.numel(), indices.element_size(), rows, width, gradient.dtype, is_in_bags=True)
    sorting = add.sorting(len(copies), by_frequency=by_frequency)
    held = len(copies) + sum(step >= 0 for step in sorting)
    return Temporaries((*copies, *sorting), add.adding(held))


BAG_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bag_backward,
    "_embedding_bag_dense_backward": _bag_backward,
}
