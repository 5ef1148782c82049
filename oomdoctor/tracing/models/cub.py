"""What CUB takes to sort, to scan and to drop repetitions.

Source: the layouts of temporary storage in CUB's dispatch_radix_sort.cuh, dispatch_scan.cuh and
dispatch_unique_by_key.cuh. How many items a block goes through is the policy of a kernel that was compiled for a GPU;
it was found from the sizes on null GPUs, torch 2.6 and 2.15.
"""

from __future__ import annotations

from typing import Final

from oomdoctor.tracing.version import TORCH

_ALIGNMENT: Final = 256
_DIGITS: Final = 256
_BITS_A_PASS: Final = 8
_LOOKBACK_PADDING: Final = 32

_SORT_TILES: Final = {4: 6528, 8: 3840}
_SORTED_BY_ONE_BLOCK: Final = {4: 4864, 8: 2304}
_SCAN_TILES: Final = {4: 1920, 8: 896}
_SCAN_STATES: Final = {4: 8, 8: 16}
_SCAN_BY_KEY_TILE: Final = 1664

IS_NEW: Final = TORCH >= (2, 7)
"""Whether CUB is the one of torch 2.15; of those between 2.6 and it nothing is known."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def sort_pairs_bytes(count: int, item_bytes: int, bits: int) -> int:
    """Storage of `radix_sort_pairs` with values as wide as the keys.

    Args:
        count: How many pairs.
        item_bytes: Bytes of a key, and of a value.
        bits: How many bits of the keys are compared; older versions make room for all of them.
    """
    if count <= _SORTED_BY_ONE_BLOCK[item_bytes]:
        return 1
    passes = -(-(bits if IS_NEW else 8 * item_bytes) // _BITS_A_PASS)
    blocks = -(-count // _SORT_TILES[item_bytes])
    other = 2 * _aligned(count * item_bytes) if passes > 1 else 0
    return other + passes * _DIGITS * 8 + blocks * _DIGITS * 4 + 2 * _ALIGNMENT - 1


def _states_bytes(blocks: int, state_bytes: int) -> int:
    """States of a look-back, one a block, after the storage's own alignment."""
    own = 2 * _ALIGNMENT if IS_NEW else _ALIGNMENT
    return _aligned((blocks + _LOOKBACK_PADDING) * state_bytes) + own - 1


def exclusive_sum_bytes(count: int, item_bytes: int) -> int:
    """Storage of `exclusive_sum`."""
    return _states_bytes(-(-count // _SCAN_TILES[item_bytes]), _SCAN_STATES[item_bytes])


def scan_by_key_bytes(count: int) -> int:
    """Storage of `inclusive_sum_by_key` of 64-bit integers."""
    return _aligned((-(-count // _SCAN_BY_KEY_TILE) + _LOOKBACK_PADDING) * 16) + 2 * _ALIGNMENT - 1


def unique_by_key_bytes(count: int, item_bytes: int) -> int:
    """Storage of `unique_by_key`."""
    tile = 2816 if item_bytes == 4 else 1344 if IS_NEW else 1792  # noqa: PLR2004 - bytes of a 32-bit integer
    return _states_bytes(-(-count // tile), 16 if IS_NEW else 8)
