"""Bring a simulated allocator into a state that a real one was in."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from oomdoctor.allocator.blocks import LIVE, UNMAPPED, Block
from oomdoctor.allocator.expandable import ExpandableSegment
from oomdoctor.allocator.rounding import SMALL_SEGMENT
from oomdoctor.units import TIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.allocator.heap import Heap
    from oomdoctor.allocator.history import HeldSegment

_ROOM = TIB
"""Addresses that an expandable segment is given after what is known of it, more than any card has."""


def restore(heap: Heap, segments: Iterable[HeldSegment]) -> None:
    """Give a heap that holds nothing what was held.

    Stretches of expandable segments of the same stream and pool are taken for parts of one.

    Args:
        heap: The allocator's state.
        segments: What was held.
    """
    expandable = []
    for segment in segments:
        if segment.expandable:
            expandable.append(segment)
        else:
            _join(_blocks(heap, segment, None))
    expandable.sort(key=_owner)
    for _, stretches in groupby(expandable, key=_owner):
        _restore_expandable(heap, sorted(stretches, key=lambda stretch: stretch.address))


def _owner(segment: HeldSegment) -> tuple[int, bool]:
    return segment.stream, segment.small


def _restore_expandable(heap: Heap, stretches: list[HeldSegment]) -> None:
    first, last = stretches[0], stretches[-1]
    page = SMALL_SEGMENT if first.small else heap.settings.large_segment
    end = last.address + last.size + -(-_ROOM // page) * page
    whole = ExpandableSegment(first.address, end - first.address, page)
    blocks: list[Block] = []
    for stretch, after in zip(stretches, [*(stretch.address for stretch in stretches[1:]), end], strict=True):
        blocks += _blocks(heap, stretch, whole)
        gap = blocks[-1].other_part(stretch.address + stretch.size, after - stretch.address - stretch.size)
        gap.state = UNMAPPED
        gap.pool.put_unmapped(gap)
        blocks.append(gap)
    _join(blocks)


def _blocks(heap: Heap, segment: HeldSegment, whole: ExpandableSegment | None) -> list[Block]:
    """The blocks of a stretch, each in its place in the heap."""
    pool = heap.small if segment.small else heap.large
    rank = heap.next_rank()
    blocks, at = [], segment.address

    def add(address: int, size: int) -> Block:
        block = Block(address, size, segment.stream, pool, whole, rank)
        blocks.append(block)
        return block

    for used in segment.used:
        if at < used.address:
            pool.put(add(at, used.address - at))
        block = add(used.address, used.size)
        block.state, block.requested = LIVE, used.requested
        heap.live[used.address] = block
        at = used.address + used.size
    if at < segment.address + segment.size:
        pool.put(add(at, segment.address + segment.size - at))
    heap.held_bytes += segment.size
    return blocks


def _join(blocks: list[Block]) -> None:
    for before, after in pairwise(blocks):
        before.after, after.before = after, before
