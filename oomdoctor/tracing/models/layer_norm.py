"""The backward of layer norm and RMS norm: copies, and partial gradients of the weights where there are many rows.

Source: `layer_norm_backward_cuda` and `LaunchGammaBetaBackwardCUDAKernel`, layer_norm_kernel.cu; partial gradients
since torch 2.8 (pull request 150773). How many rows of them there are at most was seen on null GPUs in 2.15.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.models.reductions import partial_results
from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call, Taken

_HAS_PARTIAL_GRADIENTS: Final = TORCH >= (2, 8)
_MANY_ROWS: Final = 64 * 1024
_BLOCK: Final = 32
_MOST_BLOCKS: Final = 32 * 1024
_WORD: Final = 4


def _copies(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_contiguous() else (tensor.numel() * tensor.element_size(),)


def _backward(call: Call) -> Temporaries:
    gradient, x, shape = call.args[:3]
    before, after = _copies(x), _copies(gradient)
    wanted = [result for result in call.results[1:] if result is not None]
    return Temporaries(before, (*after, *_partial_gradients(call, x, prod(shape), wanted, len(before) + len(after))))


def _partial_gradients(call: Call, x: torch.Tensor, width: int, wanted: list[Any], held: int) -> tuple[Taken, ...]:
    """For each weight a table of partial gradients, and then its sum, with partial results of its own.

    Args:
        call: The backward.
        x: The input.
        width: Numbers in a row of it.
        wanted: The weights' gradients.
        held: How many allocations there are already.
    """
    rows = x.numel() // width
    if not _HAS_PARTIAL_GRADIENTS or rows <= _MANY_ROWS or width // _BLOCK >= call.card.sm_count // 2:
        return ()
    height = min(-(-rows // _BLOCK), _MOST_BLOCKS // -(-width // _BLOCK))
    taken: list[Taken] = [height * result.size[-1] * result.dtype.itemsize for result in wanted]
    for result in wanted:
        partial = torch.empty(height, result.size[-1], dtype=result.dtype, device="meta")
        buffers = partial_results(call.card, partial, [0], max(_WORD, result.dtype.itemsize))
        taken.append(result.size[-1] * result.dtype.itemsize)
        first = held + sum(step >= 0 for step in taken if isinstance(step, int))
        taken += [*buffers, *(-1 - first - index for index in range(len(buffers)))]
    return tuple(taken)


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = dict.fromkeys(
    ("native_layer_norm_backward", "_fused_rms_norm_backward"), _backward
)
