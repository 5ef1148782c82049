"""Giving cached blocks back to the driver: all of them, enough for one request, or the old ones.

Source: `release_blocks`, `release_available_cached_blocks` and `garbage_collect_cached_blocks` in
c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from oomdoctor.allocator.blocks import KEY_BITS
from oomdoctor.allocator.expandable import shrink, whole_pages
from oomdoctor.allocator.rounding import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.allocator.blocks import Block
    from oomdoctor.allocator.heap import Heap, Request, SegmentAction


def releasable(heap: Heap) -> dict[tuple[SegmentAction, int, int], Callable[[], None]]:
    """What could be given back: every segment that is one free block, and every free page of expandable segments.

    Returns:
        What gives it back, by action, address and bytes as the memory history would have them.
    """
    found: dict[tuple[SegmentAction, int, int], Callable[[], None]] = {}
    for block in (block for pool in (heap.large, heap.small) for block in pool.in_order()):
        if block.segment is not None:
            start, end = whole_pages(block, block.segment)
            if start < end:
                found["segment_unmap", start, end - start] = partial(shrink, heap, block)
        elif not block.is_part:
            found["segment_free", block.address, block.size] = partial(heap.release_segment, block)
    return found


def release_all(heap: Heap) -> None:
    """Give back all that can be."""
    for release in releasable(heap).values():
        release()


def release_enough(heap: Heap, request: Request) -> bool:
    """Give back blocks that are too large to be split, as many as a request needs; whether they are enough."""
    largest_split = heap.settings.largest_split
    if largest_split == NO_LIMIT:
        return False
    wanted = max(request.size, largest_split)
    keys = request.pool.keys.get(request.stream, [])
    index = bisect_left(keys, wanted << KEY_BITS)
    if index < len(keys) and (block := request.pool.free[keys[index]]).segment is None:
        heap.release_segment(block)
        return True
    oversize = [key for key in reversed(keys[:index]) if key >> KEY_BITS >= largest_split]
    return _release_until(heap, [request.pool.free[key] for key in oversize], wanted)


def _release_until(heap: Heap, blocks: list[Block], wanted: int) -> bool:
    released = 0
    for block in blocks:
        if released >= wanted:
            break
        if block.segment is None:
            released += block.size
            heap.release_segment(block)
    return released >= wanted


def collect_garbage(heap: Heap) -> None:
    """Give back large blocks that were not used for long, until little enough is held."""
    threshold = int(heap.settings.collection_threshold * (heap.limit or 0))
    wanted = heap.held_bytes - threshold
    whole = [block for block in heap.large.in_order() if not block.is_part]
    total, count = sum(map(_age, whole)), len(whole)
    released, previous = 0, -1
    while previous < released < wanted and count:
        previous = released
        oldest = total / count
        for block in [block for block in whole if _age(block) >= oldest and block.segment is None]:
            whole.remove(block)
            released += block.size
            total -= _age(block)
            count -= 1
            heap.release_segment(block)


def _age(block: Block) -> int:
    return block.pool.searches - block.born
