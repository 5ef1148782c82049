"""What CUB's radix sort takes: room for keys and values between its passes, and what its blocks tell each other.

Source: CUB's dispatch_radix_sort.cuh (`invoke_onesweep`, `invoke_single_tile`), its tuning_radix_sort.cuh and
`scale_reg_bound` in util_arch.cuh, as of CUDA 13. Keys of four and eight bytes are sorted so on all cards since Volta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.devices.card import Card
    from oomdoctor.tracing.taking import Call

SORT_PAIRS: Final = "cub_radix_sort"

_WORD: Final = 4
_ALIGNMENT: Final = 256
_DIGIT_BITS: Final = 8
_DIGITS: Final = 1 << _DIGIT_BITS
_BIN: Final = 8
_COUNTER: Final = 4
_SINGLE_TILE: Final = (256, 19)
_MOST_IN_A_PORTION: Final = (1 << 28) - 1
_HOPPER: Final = 9
_AMPERE: Final = 8


def radix_sort_bytes(card: Card, count: int, key_bytes: int, value_bytes: int, bits: int) -> int:
    """Temporary storage of `DeviceRadixSort`.

    Args:
        card: On what it runs.
        count: How many keys.
        key_bytes: Size of a key, four or eight.
        value_bytes: Size of a value that goes with it; 0 for none.
        bits: How many bits of the keys are compared.
    """
    widest = max(key_bytes, value_bytes)
    if count <= _tile(*_SINGLE_TILE, widest):
        return 1
    tile = _tile(*_onesweep(card, key_bytes, value_bytes), widest)
    portion = _MOST_IN_A_PORTION // tile * tile
    passes, portions = -(-bits // _DIGIT_BITS), -(-count // portion)
    parts = [
        portions * passes * _DIGITS * _BIN,
        -(-min(count, portion) // tile) * _DIGITS * _COUNTER,
        *((count * key_bytes, count * value_bytes) if passes > 1 else ()),
        portions * passes * _COUNTER,
    ]
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1


def _tile(threads: int, items: int, widest: int) -> int:
    """Keys that a block goes through: fewer where they or their values are wider than a word."""
    return threads * max(1, items * _WORD // max(_WORD, widest))


def _onesweep(card: Card, key_bytes: int, value_bytes: int) -> tuple[int, int]:
    """Threads of a block, and words that each goes through, as tuned for offsets of 64 bits."""
    major = card.compute_capability[0]
    is_narrow = key_bytes == _WORD
    if major >= _HOPPER:
        if is_narrow:
            return 384, 29 if value_bytes > _WORD else 17
        return 384, 24 if value_bytes > _WORD else 30
    if major >= _AMPERE:
        return 384, 17 if is_narrow and value_bytes else 21
    return 256, 46 if is_narrow and value_bytes == _WORD else 23


def _sort(call: Call) -> Temporaries:
    return Temporaries(after=(radix_sort_bytes(call.card, *call.args),))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {SORT_PAIRS: _sort}
