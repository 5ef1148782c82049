"""Blocks, and the pools that keep the free ones in order of size."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from oomdoctor.allocator.statistics import PoolStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.allocator.expandable import ExpandableSegment

FREE: Final = 0
LIVE: Final = 1
PENDING: Final = 2
"""Freed, but a stream that it was recorded on may still use it."""
UNMAPPED: Final = 3
"""Addresses of an expandable segment without memory."""

ADDRESS_BITS: Final = 48
KEY_BITS: Final = ADDRESS_BITS + 40
"""A block's key is its size and, in so many bits below, its rank and address: in order of their keys, blocks are in the
order of best fit."""


class Block:
    """A part of a segment.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        requested: Bytes that were asked for when it was last handed out.
        stream: The stream that it belongs to.
        pool: The pool that it belongs to.
        state: `FREE`, `LIVE`, `PENDING` or `UNMAPPED`.
        before: The block before it in the same segment, or None.
        after: The block after it in the same segment, or None.
        segment: The expandable segment that it is of, or None.
        rank: What comes before the address among blocks of the same size.
        used_on: Other streams that it was used on, or None.
        events: Events that must happen before it is free.
        born: How often the pool had been searched when the block was put there.
    """

    __slots__ = (
        "address",
        "after",
        "before",
        "born",
        "events",
        "pool",
        "rank",
        "requested",
        "segment",
        "size",
        "state",
        "stream",
        "used_on",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - one is made for every rest that is cut off, which has to be quick
        self, address: int, size: int, stream: int, pool: Pool, segment: ExpandableSegment | None, rank: int
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.segment = segment
        self.rank = rank
        self.state = FREE
        self.requested = 0
        self.before: Block | None = None
        self.after: Block | None = None
        self.used_on: set[int] | None = None
        self.events = 0
        self.born = 0

    @property
    def is_part(self) -> bool:
        """Whether its segment has other blocks."""
        return self.before is not None or self.after is not None

    def other_part(self, address: int, size: int) -> Block:
        """Another part of the same segment, which has no neighbours yet."""
        return Block(address, size, self.stream, self.pool, self.segment, self.rank)

    def insert_after(self, block: Block) -> None:
        """Take the place after another block of the segment."""
        self.before, self.after = block, block.after
        if block.after is not None:
            block.after.before = self
        block.after = self


class Pool:
    """The free blocks of one kind of size, by stream.

    Attributes:
        small: Whether it is the pool of small blocks.
        keys: Keys of the free blocks of each stream, in order.
        free: The free blocks by key.
        unmapped: Unmapped blocks of each stream, in order of address.
        searches: How often a free block was looked for while garbage collection was on.
        statistics: What is counted of this pool.
    """

    __slots__ = ("free", "keys", "searches", "small", "statistics", "unmapped")

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.keys: dict[int, list[int]] = {}
        self.free: dict[int, Block] = {}
        self.unmapped: dict[int, list[Block]] = {}
        self.searches = 0
        self.statistics = PoolStatistics()

    def put(self, block: Block) -> None:
        """Keep a free block."""
        block.born = self.searches
        key = block.size << KEY_BITS | block.rank | block.address
        self.free[key] = block
        keys = self.keys.get(block.stream)
        if keys is None:
            self.keys[block.stream] = [key]
        else:
            insort(keys, key)

    def take(self, block: Block) -> None:
        """Keep it no longer."""
        key = block.size << KEY_BITS | block.rank | block.address
        del self.free[key]
        keys = self.keys[block.stream]
        del keys[bisect_left(keys, key)]

    def put_unmapped(self, block: Block) -> None:
        """Keep an unmapped block."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def take_unmapped(self, block: Block) -> None:
        """Keep it no longer."""
        blocks = self.unmapped[block.stream]
        del blocks[bisect_left(blocks, block.address, key=_address)]

    def in_order(self) -> Iterator[Block]:
        """The free blocks by stream, size and address."""
        for stream in sorted(self.keys):
            yield from [self.free[key] for key in self.keys[stream]]


def _address(block: Block) -> int:
    return block.address
