"""Attention: in which order its results are allocated, and what its backward takes.

Source: attention.cu and attention_backward.cu, `mha_fwd` and `mha_bwd`, flash_api.cpp, and `kernel_backward.h` of
mem_eff_attention, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.devices.card import Card
    from oomdoctor.tracing.taking import Call

_ROWS: Final = 128
_HALVES: Final = (torch.float16, torch.bfloat16)
_LOCK_FLOATS: Final = 4
_STATE_BYTES: Final = 16
_NEARLY_FULL: Final = 0.8
_AS_GOOD: Final = 0.85
_SHARED_MEMORY_OF_WIDE: Final = 128 << 10
_SEED_ON_DEVICE: Final = (2, 7)
_WIDE_HEADS_BY_64: Final = (2, 8)
"""As flash attention 2.7.4 has it; seen on null GPUs in 2.15, and not in 2.6."""


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
    after = [batch * heads * rows * 4, batch * rows * heads * _rounded_head(size) * 4]
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
    """Partial outputs where few blocks would run; the state of the dropout, which before torch 2.7 is the host's."""
    on_host = (6, 7) if TORCH < _SEED_ON_DEVICE else ()
    query, key = call.args[:2]
    dropout = call.args[3] if len(call.args) > 3 else 0.0  # noqa: PLR2004 - its place
    if dropout:  # and its first state is thrown away
        return Temporaries(after=() if on_host else (_STATE_BYTES,), on_host=on_host)
    splits = _splits(call.card, query, key)
    if splits == 1:
        return Temporaries(on_host=on_host)
    rows = splits * query.shape[0] * query.shape[1] * query.shape[2] * 4
    return Temporaries(after=(rows, rows * _rounded_head(query.shape[3])), on_host=on_host)


def _splits(card: Card, query: torch.Tensor, key: torch.Tensor) -> int:
    """`num_splits_heuristic`: the fewest parts of the keys that fill the card almost as well as any number."""
    batch, heads, length, size = query.shape
    columns = 256 if size <= 64 else 128 if size <= 128 else 64  # noqa: PLR2004 - set_params_splitkv
    blocks, most_blocks = batch * heads * -(-length // 64), 2 * card.sm_count
    key_blocks = -(-key.shape[2] // columns)
    if blocks >= _NEARLY_FULL * most_blocks:
        return 1
    eligible = [
        number
        for number in range(1, min(128, most_blocks, key_blocks) + 1)
        if number == 1 or -(-key_blocks // number) != -(-key_blocks // (number - 1))
    ]
    waves = [blocks * number / most_blocks for number in eligible]
    efficiencies = [wave / -(-wave // 1) for wave in waves]
    return next(n for n, found in zip(eligible, efficiencies, strict=True) if found >= _AS_GOOD * max(efficiencies))


def _rounded_head(size: int) -> int:
    return _above(size, 32 if size <= _ROWS or TORCH < _WIDE_HEADS_BY_64 else 64)


def _efficient_backward(call: Call) -> Temporaries:
    gradient, query, key, value = call.args[:4]
    batch, heads, length, size = query.shape
    rows = batch * heads * length * 4
    workspace = batch * heads * _accumulator_floats(call, size) * 4
    copies = _contiguous_copies(gradient)
    shared = tuple(heads * t.numel() // t.shape[1] * t.element_size() for t in (key, value) if t.shape[1] != heads)
    if query.dtype in _HALVES:
        return Temporaries(copies, (*shared, rows, workspace))
    product, first = gradient.numel() * 4, len(copies) + len(shared)
    return Temporaries(copies, (*shared, product, rows, rows, -2 - first, -1 - first, workspace))


def _accumulator_floats(call: Call, size: int) -> int:
    """fp32 accumulators of one head: of the query's gradient by blocks with a lock each, and of wide keys' and values'.

    The shapes of the blocks were seen on null GPUs; PyTorch takes the first kernel that fits head and shared memory.
    """
    query, key, value = call.args[1:4]
    block, columns, keeps_keys = _kernel(call, size)
    floats: int = -(-query.shape[2] // block) * -(-size // columns) * (block * columns + _LOCK_FLOATS)
    if keeps_keys:
        keys = _above(key.shape[2], block)
        floats += keys * (_above(size, block) + _above(value.shape[3], block))
    return floats


def _kernel(call: Call, size: int) -> tuple[int, int, bool]:
    """Rows and columns of a block, and whether the gradients of keys and values are kept outside the registers."""
    if call.args[1].dtype not in _HALVES or size <= 64:  # noqa: PLR2004 - head sizes of kernels
        return 64, 64, False
    if size > 128:  # noqa: PLR2004
        return 128, 64, True
    if call.card.compute_capability < (8, 0):
        return 128, 64, False
    if call.card.shared_memory_per_block_bytes >= _SHARED_MEMORY_OF_WIDE:
        return 128, 128, False
    return (128, 64, False) if size <= 96 else (64, 64, True)  # noqa: PLR2004


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}
