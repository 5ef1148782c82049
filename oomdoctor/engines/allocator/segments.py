"""Segments from the driver and back: a new block for a request, expandable segments, release of cached blocks.

Source: `malloc`, `alloc_block`, `ExpandableSegment`, `find_expandable_block`, `map_block`,
`try_allocate_expandable_block`, `unmap_block`, `release_expandable_segment`, `release_blocks`,
`release_available_cached_blocks` and `garbage_collect_cached_blocks` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to
2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from oomdoctor.agent.allocator_blocks import NO_LIMIT, SMALL_SEGMENT
from oomdoctor.engines.allocator.device_memory import out_of_memory, preemptively_rejected
from oomdoctor.engines.allocator.heap import FREE, KEY_BITS, UNMAPPED, Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.allocator.heap import Heap, Request, SegmentAction


@dataclass(frozen=True, slots=True)
class ExpandableSegment:
    """A range of addresses, of which pages are mapped as they are needed.

    Attributes:
        address: Its first address.
        size: Its bytes, mapped or not.
        page: Bytes of a page.
    """

    address: int
    size: int
    page: int

    def page_above(self, address: int) -> int:
        """Return the address of the first page at or above an address."""
        return self.address - (self.address - address) // self.page * self.page

    def page_below(self, address: int) -> int:
        """Return the address of the page that contains an address."""
        return self.address + (address - self.address) // self.page * self.page


def grow_expandable(heap: Heap, request: Request) -> Block | None:
    """Map pages until a block is large enough; None where memory is out, and the mapped pages stay.

    Returns:
        The block, in no pool; it may be larger than requested.
    """
    size = request.size
    block = _find_growable(heap, request)
    if block is None:
        return None
    if block.state == UNMAPPED and not _map_pages(heap, block, min(block.size, size)):
        return None
    while block.size < size:
        after = block.after
        if after is None:
            raise AssertionError("a chain of free blocks ended early")
        if not _map_pages(heap, after, min(size - block.size, after.size)):
            return None
        block = after
    block.pool.take(block)
    return block


def unmap_pages(heap: Heap, block: Block) -> None:
    """Unmap the whole pages of a free block that has some, and release a segment without mapped pages."""
    segment, pool = block.segment, block.pool
    if segment is None:
        raise AssertionError("a block without pages to unmap")
    start, end = whole_pages(block, segment)
    pool.take(block)
    _split_off_rests(block, start, end)
    block.state = UNMAPPED
    heap.absorb_alike(block)
    heap.memory.refund(end - start)
    heap.held_bytes -= end - start
    heap.statistics.driver_frees += 1
    for counted in (heap.statistics, pool.statistics):
        counted.reserved_bytes.decrease(end - start)
    heap.observe("segment_unmap", start, end - start)
    if block.is_part:
        pool.put_unmapped(block)
    else:
        heap.memory.unreserve(segment.address)


def whole_pages(block: Block, segment: ExpandableSegment) -> tuple[int, int]:
    """Return start and end of the pages that lie wholly within a block; empty where it has none."""
    return segment.page_above(block.address), segment.page_below(block.address + block.size)


def _find_growable(heap: Heap, request: Request) -> Block | None:
    """Return the lowest free or unmapped block followed by enough such blocks, or that of a new segment."""
    for unmapped in request.pool.unmapped.get(request.stream, ()):
        before = unmapped.before
        block = before if before is not None and before.state == FREE else unmapped
        if _has_room(block, request.size):
            return block
    return _reserve_segment(heap, request)


def _has_room(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and block.state in {FREE, UNMAPPED}:
        size -= block.size
        block = block.after
    return size <= 0


def _reserve_segment(heap: Heap, request: Request) -> Block | None:
    """Reserve addresses for more than the card has, so that pages can move; None where they cannot suffice."""
    pool, total = request.pool, heap.memory.total_bytes
    page = SMALL_SEGMENT if pool.small else heap.settings.large_segment
    size = -(-(total + total // 8) // page) * page
    if request.size > size and heap.rules.knows_address_space:
        return None
    segment = ExpandableSegment(heap.memory.reserve(size), size, page)
    block = Block(segment.address, size, request.stream, pool, segment, heap.next_rank())
    block.state = UNMAPPED
    pool.put_unmapped(block)
    return block


def _map_pages(heap: Heap, block: Block, size: int) -> bool:
    """Map pages at the start of an unmapped block, which becomes free and merges with its neighbours."""
    segment = block.segment
    if segment is None:
        raise AssertionError("a block without addresses to map")
    mapped = segment.page_above(block.address + size) - block.address
    if not heap.memory.charge(mapped):
        return False
    pool, start = block.pool, block.address
    pool.take_unmapped(block)
    if mapped < block.size:
        rest = block.other_part(block.address + mapped, block.size - mapped)
        rest.state = UNMAPPED
        rest.insert_after(block)
        pool.put_unmapped(rest)
        block.size = mapped
    block.state = FREE
    heap.absorb_alike(block)
    pool.put(block)
    heap.held_bytes += mapped
    heap.statistics.driver_allocations += 1
    for counted in (heap.statistics, pool.statistics):
        counted.reserved_bytes.increase(mapped)
    heap.observe("segment_map", start, mapped)
    return True


def _split_off_rests(block: Block, start: int, end: int) -> None:
    """Make separate blocks of the parts of a free block before and after its whole pages."""
    pool, stop = block.pool, block.address + block.size
    if end < stop:
        after = block.other_part(end, stop - end)
        after.insert_after(block)
        pool.put(after)
    if block.address < start:
        before = block.other_part(block.address, start - block.address)
        before.before, before.after = block.before, block
        if block.before is not None:
            block.before.after = before
        block.before = before
        pool.put(before)
    block.address, block.size = start, end - start


def releasable(heap: Heap) -> dict[tuple[SegmentAction, int, int], Callable[[], None]]:
    """Find the segments that are one free block, and the free pages of expandable segments.

    Returns:
        Functions that return them, by action, address and bytes as in the memory history.
    """
    found: dict[tuple[SegmentAction, int, int], Callable[[], None]] = {}
    for block in (block for pool in (heap.large, heap.small) for block in pool.in_order()):
        if block.segment is not None:
            start, end = whole_pages(block, block.segment)
            if start < end:
                found["segment_unmap", start, end - start] = partial(unmap_pages, heap, block)
        elif not block.is_part:
            found["segment_free", block.address, block.size] = partial(heap.release_segment, block)
    return found


def release_all(heap: Heap) -> None:
    """Return all cached memory to the driver."""
    for release in releasable(heap).values():
        release()


def release_enough(heap: Heap, request: Request) -> bool:
    """Return blocks too large to be split, as many as a request needs; True if they are enough."""
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
    released = 0
    for block in [request.pool.free[key] for key in oversize]:
        if released >= wanted:
            break
        if block.segment is None:
            released += block.size
            heap.release_segment(block)
    return released >= wanted


def collect_garbage(heap: Heap) -> None:
    """Return large blocks that were not used for long, until few enough bytes are held."""
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


def allocate_block(heap: Heap, request: Request, release_everything: Callable[[], None]) -> Block:
    """Allocate a block for a request from the driver, after returning cached memory if need be.

    Free blocks are not searched again after some were given back, as in PyTorch.

    Args:
        heap: The allocator's state.
        request: The request.
        release_everything: Waits for all streams and returns all cached memory.

    Raises:
        AllocationError: Memory is out.
    """
    if heap.collects_garbage:
        collect_garbage(heap)
    block = _ask_driver(heap, request)
    if block is None and release_enough(heap, request):
        block = _ask_driver(heap, request)
    if block is None:
        release_everything()
        heap.statistics.retries += 1
        block = _ask_driver(heap, request)
    if block is None:
        heap.statistics.ooms += 1
        raise out_of_memory(heap, request)
    return block


def _ask_driver(heap: Heap, request: Request) -> Block | None:
    """Allocate a block, in no pool; None where the driver has no memory, or the limit is reached."""
    if heap.limit is not None and heap.held_bytes + request.segment_size > heap.limit:
        return None
    allowed = heap.settings.memory_fraction * heap.card_bytes
    if heap.settings.rejects_early and heap.held_bytes + request.segment_size > allowed:
        heap.statistics.rejections += 1
        raise preemptively_rejected(request.requested)
    if heap.settings.expandable:
        return grow_expandable(heap, request)
    address = heap.memory.allocate(request.segment_size)
    return None if address is None else heap.add_segment(address, request)
