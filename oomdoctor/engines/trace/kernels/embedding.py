"""Embeddings and bags of embeddings: their backward sorts the indices, so that each row is written by one block.

Source: `embedding_dense_backward_cuda`, Embedding.cu; `embedding_backward_cuda_kernel`, EmbeddingBackwardKernel.cu;
`_embedding_bag_cuda` and `embedding_bag_backward_cuda_sum_avg`, EmbeddingBag.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from oomdoctor.engines.trace.kernels.scans import IS_NEW, exclusive_sum_bytes, scan_by_key_bytes, unique_by_key_bytes
from oomdoctor.engines.trace.kernels.sorting import radix_sort_bytes
from oomdoctor.engines.trace.layouts import HALF_TYPES, copied_bytes
from oomdoctor.engines.trace.temporaries import NO_TEMPORARIES, Temporaries

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.temporaries import Call, TemporariesByName

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
        return Temporaries((*copies, *sorting), self._adding(held))

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

    def _adding(self, held: int) -> tuple[int, ...]:
        """Return the steps of the addition: segments of equal indices, in parts, and the sums of the parts."""
        each = self.added * self.index_bytes
        segments = min(self.added, self.rows)
        parts = self.added // _ROWS_A_PART + segments
        unique = (each, 8, each, unique_by_key_bytes(self.added, self.index_bytes), -4 - held, -3 - held)
        segment_bytes = segments * self.index_bytes
        scan = (segment_bytes, segment_bytes, exclusive_sum_bytes(segments, self.index_bytes), -7 - held)
        return (*unique, *scan, 8, parts * self.index_bytes, *self._sums(segments, parts))

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


def _embedding_backward(call: Call) -> Temporaries:
    gradient, indices, rows = call.args[:3]
    count, by_frequency = indices.numel(), call.args[4] if len(call.args) > 4 else False  # noqa: PLR2004 - its place
    copies = copied_bytes((gradient, indices))
    if count <= _MOST_UNSORTED and not by_frequency:
        return Temporaries(copies)
    width = gradient.numel() // count
    added = _SortedRows(call.card, count, indices.element_size(), rows, width, gradient.dtype)
    return added.temporaries(copies, by_frequency=by_frequency)


def _bags(_: Call) -> Temporaries:
    """Return the order: the sizes of the bags and the bag of each row are allocated before the output."""
    return Temporaries(order=[2, 1, 0, 3])


def _bag_backward(call: Call) -> Temporaries:
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
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bag_backward,
    "_embedding_bag_dense_backward": _bag_backward,
}
