"""What CUB's radix sort takes: room for keys and values between its passes, and what its blocks tell each other.

Source: CUB's dispatch_radix_sort.cuh (`invoke_onesweep`, `invoke_passes`, `invoke_single_tile`),
dispatch_segmented_radix_sort.cuh, tuning_radix_sort.cuh, and `scale_reg_bound` in util_arch.cuh, as of CUDA 13. Its
offsets have 64 bits.
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
_NARROW_ONESWEEP: Final = {1: (384, 18), 2: (512, 23)}
"""Since Hopper, by the bytes of a key, with values of eight bytes; older cards sort narrow keys in several passes."""
_NARROW_PASSES: Final = {1: (5, 128), 2: (7, 256)}
"""Bits of a pass, and threads of the smaller of its blocks, by the bytes of a key."""
_GRIDS_A_CARD: Final = 5
_SPINE_TILE: Final = 512 * 11


def radix_sort_bytes(card: Card, count: int, key_bytes: int, value_bytes: int, bits: int) -> int:
    """Temporary storage of `DeviceRadixSort`.

    Args:
        card: On what it runs.
        count: How many keys.
        key_bytes: Size of a key.
        value_bytes: Size of a value that goes with it; 0 for none.
        bits: How many bits of the keys are compared.
    """
    widest = max(key_bytes, value_bytes)
    if count <= _tile(*_SINGLE_TILE, widest):
        return 1
    if key_bytes < _WORD and card.compute_capability[0] < _HOPPER:
        return _stored(_spine_bytes(card, key_bytes), count * key_bytes, count * value_bytes)
    tile = _tile(*_onesweep(card, key_bytes, value_bytes), widest)
    portion = _MOST_IN_A_PORTION // tile * tile
    passes, portions = -(-bits // _DIGIT_BITS), -(-count // portion)
    return _stored(
        portions * passes * _DIGITS * _BIN,
        -(-min(count, portion) // tile) * _DIGITS * _COUNTER,
        *((count * key_bytes, count * value_bytes) if passes > 1 else ()),
        portions * passes * _COUNTER,
    )


def segmented_sort_bytes(count: int, key_bytes: int, value_bytes: int) -> int:
    """Temporary storage of `DeviceSegmentedRadixSort`: other keys and values."""
    return _stored(count * key_bytes, count * value_bytes)


def _stored(*parts: int) -> int:
    """Parts of one allocation, each aligned, and room to align the first."""
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1


def _spine_bytes(card: Card, key_bytes: int) -> int:
    """Counts of digits by block; how many blocks a processor takes is by their threads, as the null GPU has it."""
    bits, threads = _NARROW_PASSES[key_bytes]
    blocks = card.sm_count * (card.max_threads_per_sm // threads) * _GRIDS_A_CARD
    return ((blocks << bits) + _SPINE_TILE) * _BIN


def _tile(threads: int, items: int, widest: int) -> int:
    """Keys that a block goes through: fewer where they or their values are wider than a word."""
    return threads * max(1, items * _WORD // max(_WORD, widest))


def _onesweep(card: Card, key_bytes: int, value_bytes: int) -> tuple[int, int]:
    """Threads of a block, and words that each goes through, as tuned for offsets of 64 bits."""
    major = card.compute_capability[0]
    is_word = key_bytes == _WORD
    if major >= _HOPPER:
        if key_bytes < _WORD:
            return _NARROW_ONESWEEP[key_bytes]
        if is_word:
            return 384, 29 if value_bytes > _WORD else 17
        return 384, 24 if value_bytes > _WORD else 30
    if major >= _AMPERE:
        return 384, 17 if is_word and value_bytes else 21
    return 256, 46 if is_word and value_bytes == _WORD else 23


def _sort(call: Call) -> Temporaries:
    return Temporaries(after=(radix_sort_bytes(call.card, *call.args),))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {SORT_PAIRS: _sort}
