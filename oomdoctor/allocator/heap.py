"""What the allocator holds: two pools of free blocks, the live blocks, and what it took from the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from oomdoctor.allocator.blocks import ADDRESS_BITS, FREE, Block, Pool
from oomdoctor.allocator.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.allocator.device_memory import DeviceMemory
    from oomdoctor.allocator.rules import Rules
    from oomdoctor.allocator.settings import Settings

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
