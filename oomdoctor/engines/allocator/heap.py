"""State of the allocator: blocks, pools of free blocks, live blocks, and segments as `memory_snapshot` lists them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from oomdoctor.engines.allocator.statistics import PoolStatistics, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.engines.allocator.device_memory import DeviceMemory
    from oomdoctor.engines.allocator.segments import ExpandableSegment
    from oomdoctor.engines.allocator.settings import Rules, Settings


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
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address_of)

    def take_unmapped(self, block: Block) -> None:
        """Keep it no longer."""
        blocks = self.unmapped[block.stream]
        del blocks[bisect_left(blocks, block.address, key=_address_of)]

    def in_order(self) -> Iterator[Block]:
        """The free blocks by stream, size and address."""
        for stream in sorted(self.keys):
            yield from [self.free[key] for key in self.keys[stream]]


def _address_of(block: Block) -> int:
    return block.address


SegmentAction = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation that no free block could serve.

    Attributes:
        requested: Bytes that were asked for.
        size: The same, rounded.
        segment_size: What the driver is asked for.
        stream: The stream that asks.
        pool: The pool that it is served from.
    """

    requested: int
    size: int
    segment_size: int
    stream: int
    pool: Pool


class Heap:
    """The state that every part of the allocator works on.

    Attributes:
        memory: The driver.
        settings: What the allocator is told.
        rules: What its version does differently from others.
        small: The pool of small blocks.
        large: The pool of large blocks.
        live: Blocks in use by address, those included that are freed and cannot be used again yet.
        held_bytes: What was had from the driver.
        limit: The most that it may hold, by the memory fraction; None for no limit.
        statistics: What is counted.
        observer: Told of every segment that comes or goes, as the memory history records it.
    """

    __slots__ = (
        "_card_bytes",
        "_ranges",
        "held_bytes",
        "large",
        "limit",
        "live",
        "memory",
        "observer",
        "rules",
        "settings",
        "small",
        "statistics",
    )

    def __init__(self, memory: DeviceMemory, settings: Settings, rules: Rules) -> None:
        self.memory = memory
        self.settings = settings
        self.rules = rules
        self.small, self.large = Pool(small=True), Pool(small=False)
        self.live: dict[int, Block] = {}
        self.held_bytes = 0
        self._card_bytes = memory.total_bytes
        self._ranges = 0
        self.limit: int | None = None
        self.statistics = Statistics(self.small.statistics, self.large.statistics)
        self.observer: Callable[[SegmentAction, int, int], None] | None = None

    @property
    def card_bytes(self) -> int:
        """What the card has in all, as far as the allocator knows."""
        return self._card_bytes if self.rules.reads_card_once else self.memory.total_bytes

    @property
    def collects_garbage(self) -> bool:
        """Whether old blocks go back to the driver before new ones are asked for."""
        return self.limit is not None and self.settings.collection_threshold > 0

    def next_rank(self) -> int:
        """The rank of a new segment: newer versions prefer the older of blocks of the same size."""
        self._ranges += self.rules.prefers_older_segments
        return self._ranges << ADDRESS_BITS

    def observe(self, action: SegmentAction, address: int, size: int) -> None:
        """Tell of a segment that came or went."""
        if self.observer is not None:
            self.observer(action, address, size)

    def add_segment(self, address: int, request: Request) -> Block:
        """A segment came from the driver; it is one block, in no pool."""
        size = request.segment_size
        self.held_bytes += size
        self.statistics.driver_allocations += 1
        for counted in (self.statistics, request.pool.statistics):
            counted.segments.increase(1)
            counted.reserved_bytes.increase(size)
        if size >= self.settings.largest_split:
            self.statistics.oversize_segments.increase(1)
        self.observe("segment_alloc", address, size)
        return Block(address, size, request.stream, request.pool, None, self.next_rank())

    def release_segment(self, block: Block) -> None:
        """A segment that is one free block goes back to the driver."""
        if block.segment is not None:
            raise AssertionError("an expandable segment is no segment of the driver's")
        self.memory.release(block.address)
        self.held_bytes -= block.size
        self.statistics.driver_frees += 1
        for counted in (self.statistics, block.pool.statistics):
            counted.segments.decrease(1)
            counted.reserved_bytes.decrease(block.size)
        if block.size >= self.settings.largest_split:
            self.statistics.oversize_segments.decrease(1)
        block.pool.take(block)
        self.observe("segment_free", block.address, block.size)

    def absorb_alike(self, block: Block) -> None:
        """Make neighbours that are as free, or as unmapped, part of a block that is in no pool."""
        for other in (block.before, block.after):
            if other is not None and other.state == block.state:
                (block.pool.take if other.state == FREE else block.pool.take_unmapped)(other)
                absorb(block, other)

    def blocks(self) -> Iterator[Block]:
        """Every block that has memory, by address."""
        found = [*self.live.values(), *self.small.free.values(), *self.large.free.values()]
        yield from sorted(found, key=lambda block: block.address)


def absorb(block: Block, other: Block) -> None:
    """Make a neighbour part of a block."""
    if other is block.before:
        block.address = other.address
        block.before = other.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = other.after
        if block.after is not None:
            block.after.before = block
    block.size += other.size


class BlockInfo(NamedTuple):
    """A part of a segment.

    Attributes:
        size: Its bytes.
        requested: Bytes that were asked for when it was last handed out.
        state: `active_allocated`, `active_pending_free` or `inactive`.
    """

    size: int
    requested: int
    state: str


class Segment(NamedTuple):
    """A stretch of memory from the driver.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        stream: The stream that it belongs to.
        small: Whether it is of the small pool.
        expandable: Whether it is a stretch of an expandable segment.
        blocks: What it is cut into.
    """

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockInfo, ...]


_STATE_NAMES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


def list_segments(heap: Heap) -> list[Segment]:
    """The segments by address; of an expandable segment, each stretch that is mapped."""
    return [_segment_from(block) for block in heap.blocks() if block.before is None or block.before.state == UNMAPPED]


def _segment_from(first: Block) -> Segment:
    blocks = []
    block: Block | None = first
    while block is not None and block.state != UNMAPPED:
        blocks.append(BlockInfo(block.size, block.requested, _STATE_NAMES.get(block.state, "inactive")))
        block = block.after
    size = sum(part.size for part in blocks)
    return Segment(first.address, size, first.stream, first.pool.small, first.segment is not None, tuple(blocks))
