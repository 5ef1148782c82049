"""Norms of vectors: partial results of one, and of every chunk of a list's.

Source: `linalg_vector_norm_out`, LinearAlgebra.cpp, and `foreach_tensor_norm_cuda`, ForeachReduceOp.cu; the latter was
seen on null GPUs in torch 2.6 and 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.models.reductions import partial_results
from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_WORD: Final = 4
_CHUNK: Final = 65536
_CHUNKS_OF_ALL: Final = (2, 7)


def _norm(call: Call) -> Temporaries:
    """Summed in fp32, or in fp64; the dimensions come after the order of the norm."""
    tensor, dims = call.args[0], call.args[2] if len(call.args) > 2 else None  # noqa: PLR2004 - their place
    return Temporaries(after=partial_results(call.card, tensor, dims, max(_WORD, tensor.element_size())))


def _norms(call: Call) -> Temporaries:
    """A partial norm of each chunk; before those, in newer versions, where each tensor's begin."""
    tensors = call.args[0]
    chunks = [-(-tensor.numel() // _CHUNK) for tensor in tensors]
    if TORCH < _CHUNKS_OF_ALL:
        return Temporaries((len(tensors) * max(chunks) * _WORD,))
    return Temporaries(((len(tensors) + 1) * 8, sum(chunks) * _WORD))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {"linalg_vector_norm": _norm, "_foreach_norm": _norms}
