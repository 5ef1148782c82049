"""Indices as kernels want them: 64-bit, and all laid out alike.

Source: `expandTensors`, IndexingUtils.h; `make_info` and `AdvancedIndex`, TensorAdvancedIndexing.cpp; torch 2.6 to
2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_INDEX_BYTES: Final = 8


def _copied_indices(call: Call) -> Temporaries:
    given = [index for index in call.args[1] if index is not None]
    widened = tuple(index.numel() * _INDEX_BYTES for index in given if index.dtype is torch.int32)
    metas = [torch.empty_strided(index.shape, index.stride(), device="meta") for index in given]
    placed = torch.broadcast_tensors(*metas)  # type: ignore[no-untyped-call]
    is_alike = len({index.stride() for index in placed}) <= 1
    copied = tuple(i.numel() * _INDEX_BYTES for i in placed if not (is_alike or i.is_contiguous()))
    return Temporaries(before=(*widened, *copied))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = dict.fromkeys(("index", "_index_put_impl_"), _copied_indices)
