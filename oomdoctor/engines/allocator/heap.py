"""State of the allocator: blocks, pools of free blocks, live blocks, and segments as `memory_snapshot` lists them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from oomdoctor.engines.allocator.statistics import PoolStatistics, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.engines.allocator.device_memory import DeviceMemory
    from oomdoctor.engines.allocator.segments import ExpandableSegment
    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules


FREE: Final = 0
LIVE: Final = 1
PENDING: Final = 2
"""Freed, but another stream may still use it."""
UNMAPPED: Final = 3
"""Addresses of an expandable segment without memory."""

ADDRESS_BITS: Final = 48
KEY_BITS: Final = ADDRESS_BITS + 40
"""Bits of a block's key below its size: its rank and address. Blocks in the order of their keys are in the order of
best fit."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, free or in use.

    Attributes:
        address: Its first address.
        size: Its bytes.
        requested: Bytes of the request that it last served.
        stream: The stream that it belongs to.
        pool: The pool that it belongs to.
        state: `FREE`, `LIVE`, `PENDING` or `UNMAPPED`.
        before: The block before it in the same segment, or None.
        after: The block after it in the same segment, or None.
        segment: Its expandable segment, or None.
        rank: The order among blocks of the same size, before the address.
        used_on: Other streams that use it, or None.
        events: Number of events that must happen before it is free.
        born: Value of the pool's `searches` when the block was added.
    """

    address: int
    size: int
    stream: int
    pool: Pool
    segment: ExpandableSegment | None
    rank: int
    state: int = FREE
    requested: int = 0
    before: Block | None = None
    after: Block | None = None
    used_on: set[int] | None = None
    events: int = 0
    born: int = 0

    @property
    def is_part(self) -> bool:
        """Whether its segment has other blocks."""
        return self.before is not None or self.after is not None

    def other_part(self, address: int, size: int) -> Block:
        """Return another block of the same segment, without neighbours yet."""
        return Block(address, size, self.stream, self.pool, self.segment, self.rank)

    def insert_after(self, block: Block) -> None:
        """Link this block after another one of its segment."""
        self.before, self.after = block, block.after
        if block.after is not None:
            block.after.before = self
        block.after = self


@dataclass(slots=True, eq=False)
class Pool:
    """The free blocks of one kind of size, by stream.

    Attributes:
        small: Whether it is the pool of small blocks.
        keys: Keys of the free blocks of each stream, in order.
        free: The free blocks by key.
        unmapped: Unmapped blocks of each stream, in order of address.
        searches: Number of searches for a free block with garbage collection on.
        statistics: The pool's counters.
    """

    small: bool
    keys: dict[int, list[int]] = field(default_factory=dict)
    free: dict[int, Block] = field(default_factory=dict)
    unmapped: dict[int, list[Block]] = field(default_factory=dict)
    searches: int = 0
    statistics: PoolStatistics = field(default_factory=PoolStatistics)

    def put(self, block: Block) -> None:
        """Add a free block."""
        block.born = self.searches
        key = block.size << KEY_BITS | block.rank | block.address
        self.free[key] = block
        keys = self.keys.get(block.stream)
        if keys is None:
            self.keys[block.stream] = [key]
        else:
            insort(keys, key)

    def take(self, block: Block) -> None:
        """Remove a free block."""
        key = block.size << KEY_BITS | block.rank | block.address
        del self.free[key]
        keys = self.keys[block.stream]
        del keys[bisect_left(keys, key)]

    def put_unmapped(self, block: Block) -> None:
        """Add an unmapped block."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address_of)

    def take_unmapped(self, block: Block) -> None:
        """Remove an unmapped block."""
        blocks = self.unmapped[block.stream]
        del blocks[bisect_left(blocks, block.address, key=_address_of)]

    def in_order(self) -> Iterator[Block]:
        """Yield the free blocks by stream, size and address."""
        for stream in sorted(self.keys):
            yield from [self.free[key] for key in self.keys[stream]]


def _address_of(block: Block) -> int:
    return block.address


SegmentAction = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation for which there is no free block.

    Attributes:
        requested: Bytes requested.
        size: The same, rounded.
        segment_size: Bytes that the driver is asked for.
        stream: The stream of the request.
        pool: The pool that serves it.
    """

    requested: int
    size: int
    segment_size: int
    stream: int
    pool: Pool


class Heap:
    """The state that all parts of the allocator share.

    Attributes:
        memory: The driver's memory.
        settings: The allocator's settings.
        rules: The rules of its version.
        small: The pool of small blocks.
        large: The pool of large blocks.
        live: Blocks in use by address, with those that are freed but pending.
        held_bytes: Bytes held from the driver.
        limit: Most bytes that it may hold, by the memory fraction; None for no limit.
        statistics: The counters.
        observer: Called for every segment that comes or goes, as the memory history records it.
    """

    def __init__(self, memory: DeviceMemory, settings: AllocatorSettings, rules: Rules) -> None:
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
        """Total memory of the card, as far as the allocator knows it."""
        return self._card_bytes if self.rules.reads_card_once else self.memory.total_bytes

    @property
    def collects_garbage(self) -> bool:
        """Whether old blocks are returned to the driver before it is asked for more."""
        return self.limit is not None and self.settings.collection_threshold > 0

    def next_rank(self) -> int:
        """Return the rank of a new segment: newer versions prefer the older of blocks of the same size."""
        self._ranges += self.rules.prefers_older_segments
        return self._ranges << ADDRESS_BITS

    def observe(self, action: SegmentAction, address: int, size: int) -> None:
        """Report a segment that came or went to the observer."""
        if self.observer is not None:
            self.observer(action, address, size)

    def add_segment(self, address: int, request: Request) -> Block:
        """Count a segment from the driver; return it as one block, in no pool."""
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
        """Return a segment that is one free block to the driver."""
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
        """Merge neighbours of the same state, free or unmapped, into a block that is in no pool."""
        for other in (block.before, block.after):
            if other is not None and other.state == block.state:
                (block.pool.take if other.state == FREE else block.pool.take_unmapped)(other)
                absorb(block, other)

    def blocks(self) -> Iterator[Block]:
        """Yield every block that has memory, by address."""
        found = [*self.live.values(), *self.small.free.values(), *self.large.free.values()]
        yield from sorted(found, key=lambda block: block.address)


def absorb(block: Block, other: Block) -> None:
    """Merge a neighbour into a block."""
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
    """A block of a segment.

    Attributes:
        size: Its bytes.
        requested: Bytes of the request that it last served.
        state: `active_allocated`, `active_pending_free` or `inactive`.
    """

    size: int
    requested: int
    state: str


class Segment(NamedTuple):
    """A range of memory from the driver.

    Attributes:
        address: Its first address.
        size: Its bytes.
        stream: The stream that it belongs to.
        small: Whether it is of the small pool.
        expandable: Whether it is a range of an expandable segment.
        blocks: Its blocks, by address.
    """

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockInfo, ...]


_STATE_NAMES = {LIVE: "active_allocated", PENDING: "active_pending_free"}


def list_segments(heap: Heap) -> list[Segment]:
    """Return the segments by address; of an expandable segment, each mapped range."""
    return [_segment_from(block) for block in heap.blocks() if block.before is None or block.before.state == UNMAPPED]


def _segment_from(first: Block) -> Segment:
    blocks = []
    block: Block | None = first
    while block is not None and block.state != UNMAPPED:
        blocks.append(BlockInfo(block.size, block.requested, _STATE_NAMES.get(block.state, "inactive")))
        block = block.after
    size = sum(part.size for part in blocks)
    return Segment(first.address, size, first.stream, first.pool.small, first.segment is not None, tuple(blocks))
