"""Bags of embeddings: which results come first, and the backward, which sorts the indices as an embedding's does.

Source: `_embedding_bag_cuda` and `embedding_bag_backward_cuda_sum_avg`, EmbeddingBag.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.models.embedding import Sorted
from oomdoctor.tracing.taking import NOTHING, Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_MAX: Final = 2


def _bags(_: Call) -> Temporaries:
    """The sizes of the bags and whose each row is go before the output."""
    return Temporaries(order=[2, 1, 0, 3])


def _backward(call: Call) -> Temporaries:
    gradient, indices, rows, by_frequency, mode = (call.args[place] for place in (0, 1, 6, 7, 8))
    copies = () if gradient.is_contiguous() else (gradient.numel() * gradient.element_size(),)
    if not indices.numel():
        return NOTHING
    if mode == _MAX:
        return Temporaries(copies)
    width = gradient.shape[-1]
    add = Sorted(call.card, indices.numel(), indices.element_size(), rows, width, gradient.dtype, is_in_bags=True)
    sorting = add.sorting(len(copies), by_frequency=by_frequency)
    held = len(copies) + sum(step >= 0 for step in sorting)
    return Temporaries((*copies, *sorting), add.adding(held))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _backward,
    "_embedding_bag_dense_backward": _backward,
}
