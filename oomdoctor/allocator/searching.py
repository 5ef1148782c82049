"""Looking for a free block: the smallest that is large enough, with the exceptions that settings make.

Source: `get_free_block` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from oomdoctor.allocator.blocks import KEY_BITS, UNMAPPED, Block, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.allocator.settings import Settings


def find_free(settings: Settings, pool: Pool, size: int, stream: int) -> Block | None:
    """Take the block out of its pool that a request is served from; None where there is none.

    Args:
        settings: What the allocator is told.
        pool: The pool of the request.
        size: Bytes of the request, rounded.
        stream: The stream that asks.
    """
    keys = pool.keys.get(stream, ())
    index = bisect_left(keys, size << KEY_BITS)
    if index < len(keys) and pool.free[keys[index]].segment is not None:
        index = (_least_growing if settings.expandable else _next_fixed)(pool, keys, index)
    if index >= len(keys):
        return None
    block = pool.free[keys[index]]
    if not _may_serve(settings, block, size):
        return None
    pool.take(block)
    return block


def _least_growing(pool: Pool, keys: Sequence[int], index: int) -> int:
    """A block at the end of what is mapped counts as large as it can become, so others are preferred."""
    block = pool.free[keys[index]]
    for at in range(index + 1, len(keys)):
        other = pool.free[keys[at]]
        if block.segment is None or _size_when_grown(other) >= _size_when_grown(block):
            break
        index, block = at, other
    return index


def _size_when_grown(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


def _next_fixed(pool: Pool, keys: Sequence[int], index: int) -> int:
    while index < len(keys) and pool.free[keys[index]].segment is not None:
        index += 1
    return index


def _may_serve(settings: Settings, block: Block, size: int) -> bool:
    """Whether a block that is too large to be split is not too large for the request."""
    if size < settings.largest_split:
        return block.size < settings.largest_split
    return block.size < size + settings.largest_rounding
