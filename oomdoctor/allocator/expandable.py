"""Expandable segments: a range of addresses for each stream and pool, in which pages are mapped as they are needed.

Source: `ExpandableSegment`, `find_expandable_block`, `map_block`, `try_allocate_expandable_block`, `unmap_block` and
`release_expandable_segment` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.allocator.blocks import FREE, UNMAPPED, Block, Pool
from oomdoctor.allocator.rounding import SMALL_SEGMENT

if TYPE_CHECKING:
    from oomdoctor.allocator.heap import Heap, Request


@dataclass(frozen=True, slots=True)
class ExpandableSegment:
    """A range of addresses.

    Attributes:
        address: Where it begins.
        size: Its bytes, whether mapped or not.
        page: Bytes that are mapped and unmapped at a time.
    """

    address: int
    size: int
    page: int

    def page_above(self, address: int) -> int:
        """Where the first page begins that begins not before an address."""
        return self.address - (self.address - address) // self.page * self.page

    def page_below(self, address: int) -> int:
        """Where the page begins that an address is in."""
        return self.address + (address - self.address) // self.page * self.page


def grow(heap: Heap, request: Request) -> Block | None:
    """Map pages until a block is large enough; None where memory is out, and what was mapped stays.

    Returns:
        The block, in no pool; it may be larger than what is needed.
    """
    size = request.size
    block = _find(heap, request)
    if block is None:
        return None
    if block.state == UNMAPPED and not _map(heap, block, min(block.size, size)):
        return None
    while block.size < size:
        after = block.after
        if after is None:
            raise AssertionError("a chain of free blocks ended early")
        if not _map(heap, after, min(size - block.size, after.size)):
            return None
        block = after
    block.pool.take(block)
    return block


def shrink(heap: Heap, block: Block) -> None:
    """Unmap the whole pages of a free block, of which there are some, and let go of a segment that has none left."""
    segment, pool = block.segment, block.pool
    if segment is None:
        raise AssertionError("a block without pages to unmap")
    start, end = whole_pages(block, segment)
    pool.take(block)
    _keep_rests(block, start, end)
    block.state = UNMAPPED
    heap.absorb_alike(block)
    _count_unmapped(heap, pool, start, end - start)
    if block.is_part:
        pool.put_unmapped(block)
    else:
        heap.memory.unreserve(segment.address)


def whole_pages(block: Block, segment: ExpandableSegment) -> tuple[int, int]:
    """Where the pages begin and end that lie wholly within a block; the end is not after the beginning without any."""
    return segment.page_above(block.address), segment.page_below(block.address + block.size)


def _find(heap: Heap, request: Request) -> Block | None:
    """The lowest free or unmapped block that has enough of such blocks after it; a new segment where there is none."""
    for unmapped in request.pool.unmapped.get(request.stream, ()):
        before = unmapped.before
        block = before if before is not None and before.state == FREE else unmapped
        if _has_room(block, request.size):
            return block
    return _reserve(heap, request)


def _has_room(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and block.state in {FREE, UNMAPPED}:
        size -= block.size
        block = block.after
    return size <= 0


def _reserve(heap: Heap, request: Request) -> Block | None:
    """Addresses for more than the card has, so that pages can move to the end; None where they are of no use."""
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


def _map(heap: Heap, block: Block, size: int) -> bool:
    """Map the pages at the beginning of an unmapped block; the block becomes free and joins its neighbours."""
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
    _count_mapped(heap, pool, start, mapped)
    return True


def _count_mapped(heap: Heap, pool: Pool, start: int, size: int) -> None:
    heap.held_bytes += size
    heap.statistics.driver_allocations += 1
    for counted in (heap.statistics, pool.statistics):
        counted.reserved_bytes.increase(size)
    heap.observe("segment_map", start, size)


def _keep_rests(block: Block, start: int, end: int) -> None:
    """Make blocks of their own of what a free block has before and after its whole pages."""
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


def _count_unmapped(heap: Heap, pool: Pool, start: int, size: int) -> None:
    heap.memory.refund(size)
    heap.held_bytes -= size
    heap.statistics.driver_frees += 1
    for counted in (heap.statistics, pool.statistics):
        counted.reserved_bytes.decrease(size)
    heap.observe("segment_unmap", start, size)
