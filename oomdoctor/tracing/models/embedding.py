"""The backward of an embedding sorts the indices, so that each row is written by one block.

Source: `embedding_dense_backward_cuda`, Embedding.cu, and `embedding_backward_cuda_kernel`, EmbeddingBackwardKernel.cu.
What CUB takes to sort was seen on null GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_NO_SORT: Final = 3072
_ROWS_A_THREAD: Final = 10


def _embedding_backward(call: Call) -> Temporaries:
    gradient, indices, rows = call.args[:3]
    count, by_frequency = indices.numel(), call.args[4] if len(call.args) > 4 else False  # noqa: PLR2004 - its place
    copy = () if gradient.is_contiguous() else (gradient.numel() * gradient.element_size(),)
    if count <= _NO_SORT and not by_frequency:
        return Temporaries(copy)
    each = count * indices.element_size()
    segments = count // _ROWS_A_THREAD + min(count, rows)
    width = gradient.numel() // count
    sort_bytes = 7679 + 16 * count
    first = len(copy)  # positions of what is given back count from here
    before = (*copy, each, each, each, sort_bytes, -4 - first, -3 - first)
    after = (each, 8, each, 1535, -8 - first, -7 - first, each, each, 1279, -11 - first)
    return Temporaries(before, (*after, 8, segments * 8, segments * width * 4))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {"embedding_dense_backward": _embedding_backward}
