"""How many bytes a request becomes, and how many the driver is asked for.

Source: `round_size`, `roundup_power2_next_division`, `get_allocation_size` and `should_split` in
c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST_BLOCK: Final = 512
"""Every request is rounded up to a multiple of this."""
LARGEST_SMALL: Final = MIB
"""Rounded requests up to here are of the small pool, and rests up to here stay with a block of the large pool."""
SMALL_SEGMENT: Final = 2 * MIB
"""What the driver is asked for where the small pool has no block."""
LARGE_SEGMENT: Final = 20 * MIB
"""The same of the large pool, for requests that are not large themselves."""
SMALLEST_OWN_SEGMENT: Final = 10 * MIB
"""Rounded requests from here on have a segment of their own size."""
SEGMENT_STEP: Final = 2 * MIB
"""Segments of their own size are rounded up to a multiple of this."""
NO_LIMIT: Final = 2**64 - 1
"""What `max_split_size` is where it is not set: the largest number that C++ has for a size."""
DIVISIONS: Final = 16
"""`roundup_power2_divisions` has one value for each power of two from 1 MiB on."""
_FIRST_DIVISION: Final = MIB.bit_length()


def rounded_size(requested: int, divisions: Sequence[int] = ()) -> int:
    """Bytes of the block that a request needs.

    Args:
        requested: Bytes that were asked for.
        divisions: Divisions between two powers of two, from 1 MiB on; nothing where none are set.
    """
    if requested < SMALLEST_BLOCK:
        return SMALLEST_BLOCK
    if divisions:
        count = divisions[min(max(requested.bit_length() - _FIRST_DIVISION, 0), DIVISIONS - 1)]
        if count > 1 and requested > SMALLEST_BLOCK * count:
            return _rounded_to_division(requested, count)
    return -(-requested // SMALLEST_BLOCK) * SMALLEST_BLOCK


def segment_size(size: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Bytes that the driver is asked for where no block is free.

    Args:
        size: Bytes of the block, rounded.
        large_segment: `large_segment_size_mb`, in bytes.
    """
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if size < SMALLEST_OWN_SEGMENT:
        return large_segment
    return -(-size // SEGMENT_STEP) * SEGMENT_STEP


def is_split(rest: int, size: int, *, small: bool, largest_split: int) -> bool:
    """Whether the rest of a free block becomes a block of its own.

    Args:
        rest: Bytes of the free block that the request leaves over.
        size: Bytes of the request, rounded.
        small: Whether the block is of the small pool, or expandable segments are in use.
        largest_split: `max_split_size_mb`, in bytes, or `NO_LIMIT`.
    """
    if small:
        return rest >= SMALLEST_BLOCK
    return size < largest_split and rest > LARGEST_SMALL


def _rounded_to_division(requested: int, divisions: int) -> int:
    floor = 1 << (requested.bit_length() - 1)
    if requested == floor:
        return requested
    step = floor >> (divisions.bit_length() - 1)
    return -(-requested // step) * step if step else 2 * floor
