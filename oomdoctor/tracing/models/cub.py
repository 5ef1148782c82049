"""What CUB takes to scan and to drop repetitions; `radix_sort` says what it takes to sort.

Source: the layouts of temporary storage in CUB's dispatch_scan.cuh and dispatch_unique_by_key.cuh. How
many items a block goes through is the policy of a kernel that was compiled for a GPU; it was found from the sizes on
null GPUs, torch 2.6 and 2.15.
"""

from __future__ import annotations

from typing import Final

from oomdoctor.tracing.version import TORCH

_ALIGNMENT: Final = 256
_LOOKBACK_PADDING: Final = 32

_SCAN_TILES: Final = {4: 1920, 8: 896}
_SCAN_STATES: Final = {4: 8, 8: 16}
_SCAN_BY_KEY_TILE: Final = 1664

IS_NEW: Final = TORCH >= (2, 7)
"""Whether CUB is the one of torch 2.15; of those between 2.6 and it nothing is known."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


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
