"""Attention: in which order its results are allocated, and what its backward takes.

Source: attention.cu and attention_backward.cu, `mha_fwd` and `mha_bwd`, flash_api.cpp, and `kernel_backward.h` of
mem_eff_attention, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import NOTHING, Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_ROWS: Final = 128
_HALVES: Final = (torch.float16, torch.bfloat16)
_LOCK_FLOATS: Final = 4
_SEED_ON_DEVICE: Final = (2, 7)


def _above(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _contiguous_copies(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Bytes of the copies of those whose heads do not lie together for each token."""
    return tuple(t.numel() * t.element_size() for t in tensors if not t.transpose(1, 2).is_contiguous())


def _flash_backward(call: Call) -> Temporaries:
    """A row of fp32 for the softmax and an fp32 gradient of the query; grouped keys' gradients for every head."""
    gradient, query, key = call.args[:3]
    batch, heads, length, size = query.shape
    rows = _above(length, _ROWS)
    after = [batch * heads * rows * 4, batch * rows * heads * _above(size, 32 if size <= _ROWS else 64) * 4]
    if key.shape[1] != heads:
        after += [batch * key.shape[2] * heads * size * query.element_size()] * 2
    return Temporaries(_contiguous_copies(gradient, call.args[4]), tuple(after))


def _efficient(call: Call) -> Temporaries:
    """Seed and offset of the dropout are the host's, but since torch 2.7 on the device where there is no dropout."""
    dropout = call.args[5] if len(call.args) > 5 else call.kwargs.get("dropout_p", 0.0)  # noqa: PLR2004 - its place
    if TORCH < _SEED_ON_DEVICE or dropout:
        return Temporaries(on_host=(2, 3))
    return Temporaries(order=[2, 3, 0, 1])


def _flash(call: Call) -> Temporaries:
    """Output, softmax, and the state of the dropout, which before torch 2.7 is the host's."""
    if TORCH < _SEED_ON_DEVICE:
        return Temporaries(on_host=(6, 7))
    return NOTHING


def _efficient_backward(call: Call) -> Temporaries:
    gradient, query = call.args[:2]
    batch, heads, length, size = query.shape
    rows = batch * heads * length * 4
    workspace = batch * heads * _accumulator_floats(call, length, size) * 4
    copies = _contiguous_copies(gradient) if TORCH < _SEED_ON_DEVICE else ()
    if query.dtype in _HALVES:
        return Temporaries(copies, (rows, workspace))
    product, first = gradient.numel() * 4, len(copies)
    return Temporaries(copies, (product, rows, rows, -2 - first, -1 - first, workspace))


def _accumulator_floats(call: Call, length: int, size: int) -> int:
    """fp32 accumulators of one head: of the query's gradient by blocks with a lock, and of the keys' where too wide."""
    query, key, value = call.args[1:4]
    is_half, wide = query.dtype in _HALVES, call.card.compute_capability >= (8, 0)
    block = 128 if is_half and wide and size > 64 else 64  # noqa: PLR2004
    columns = -(-size // (128 if is_half and size > 64 else 64))  # noqa: PLR2004
    floats = -(-length // block) * columns * (block * min(128 if is_half and size > 64 else 64, 128) + _LOCK_FLOATS)  # noqa: PLR2004
    return floats


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}
