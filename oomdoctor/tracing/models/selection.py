"""The largest of many numbers, found by several blocks for each slice.

Source: `mbtopk::launch` and `should_use_multiblock`, TensorTopK.cu; CUB's dispatch_scan_by_key.cuh and
tuning_scan_by_key.cuh for keys and sums of 32 bits; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.devices.card import Card
    from oomdoctor.tracing.taking import Call

SELECT: Final = "topk_by_blocks"

_ENOUGH: Final = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (None, 400),
)  # fmt: skip
"""Up to so many slices, of which each is of so many numbers at least."""
_THREADS: Final = 256
_REGISTERS_A_BLOCK: Final = 40 * _THREADS
_REGISTERS_A_PROCESSOR: Final = 65536
_DIGITS: Final = 256
_WORD: Final = 4
_FEWEST, _MOST = 4, 64
_KEEPS_SUMS: Final = TORCH >= (2, 7)
"""2.15 keeps what a slice looks for twice, and the sums of its digits; 2.6 keeps three words a slice."""
_ALIGNMENT: Final = 256
_LOOKED_BACK: Final = 32
_STATE: Final = 16


def is_by_blocks(slices: int, length: int) -> bool:
    """Whether there are few slices for a block each, or long ones."""
    return next(length >= enough for most, enough in _ENOUGH if most is None or slices <= most)


def _select(call: Call) -> Temporaries:
    slices, length, item_bytes = call.args
    blocks = slices * -(-length // (_THREADS * _items_a_thread(call.card, slices * length)))
    counts, word = blocks * _DIGITS * 2, slices * _WORD
    first = (
        (slices * item_bytes, 2 * word, 2 * word, counts, slices * _DIGITS * _WORD)
        if _KEEPS_SUMS
        else (slices * item_bytes, word, word, word, counts)
    )
    scan = _scan_by_key_bytes(call.card, blocks)
    before = (*first, blocks * _WORD, blocks * _WORD)
    return Temporaries(after=(*before, scan, -1 - len(before), scan))


def _items_a_thread(card: Card, count: int) -> int:
    threads = card.sm_count * (_REGISTERS_A_PROCESSOR // _REGISTERS_A_BLOCK) * _THREADS
    return max(_FEWEST, min(-(-count // threads), _MOST))


def _scan_by_key_bytes(card: Card, count: int) -> int:
    blocks = -(-count // _scan_tile(card))
    parts = (blocks + _LOOKED_BACK) * _STATE, (blocks + 1) * _WORD
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1


def _scan_tile(card: Card) -> int:
    """Threads of a block times what each goes through, as tuned for some generations."""
    capability = card.compute_capability
    if capability[0] >= 10:  # noqa: PLR2004 - Blackwell
        return 224 * 20
    if capability[0] == 9:  # noqa: PLR2004 - Hopper
        return 288 * 14
    return 256 * 15 if capability == (8, 0) else 256 * 9


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {SELECT: _select}
