"""PyTorch's caching allocator, step by step as the real one, on memory that is only counted.

An allocation takes the smallest free block of its stream that is large enough and splits off the rest. Where there is
none, the driver is asked for a segment; where the driver has no memory, cached blocks are returned and it is asked
again. Events of other streams happen at once, as on a null GPU.

Source: `DeviceCachingAllocator` and `get_free_block` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from oomdoctor.agent.allocator_blocks import LARGEST_SMALL, NO_LIMIT, SMALLEST_BLOCK, rounded_size
from oomdoctor.engines.allocator.device_memory import EXBIBYTE, more_than_an_exbibyte
from oomdoctor.engines.allocator.heap import (
    FREE,
    KEY_BITS,
    LIVE,
    PENDING,
    UNMAPPED,
    Block,
    Heap,
    Pool,
    Request,
    Segment,
    SegmentAction,
    absorb,
    list_segments,
)
from oomdoctor.engines.allocator.segments import allocate_block, release_all
from oomdoctor.engines.allocator.settings import NEWEST, AllocatorSettings, Rules, segment_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.allocator.device_memory import DeviceMemory


def find_free(settings: AllocatorSettings, pool: Pool, size: int, stream: int) -> Block | None:
    """Take the free block that serves a request out of its pool; None where there is none.

    Args:
        settings: The allocator's settings.
        pool: The pool of the request.
        size: Bytes of the request, rounded.
        stream: The stream that asks.
    """
    keys = pool.keys.get(stream, ())
    index = bisect_left(keys, size << KEY_BITS)
    if index < len(keys) and pool.free[keys[index]].segment is not None:
        index = (_smallest_when_grown if settings.expandable else _next_fixed)(pool, keys, index)
    if index >= len(keys):
        return None
    block = pool.free[keys[index]]
    if not _may_serve(settings, block, size):
        return None
    pool.take(block)
    return block


def _smallest_when_grown(pool: Pool, keys: Sequence[int], index: int) -> int:
    """Return the index of the block that is smallest when grown: one before unmapped pages counts with them."""
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


def _may_serve(settings: AllocatorSettings, block: Block, size: int) -> bool:
    """Return whether a block fits the request, given that blocks too large to be split serve large requests only."""
    if size < settings.largest_split:
        return block.size < settings.largest_split
    return block.size < size + settings.largest_rounding


class CachingAllocator:
    """The caching allocator of one GPU.

    Args:
        memory: The driver's memory.
        settings: The allocator's settings.
        rules: The rules of its version.
    """

    def __init__(self, memory: DeviceMemory, settings: AllocatorSettings | None = None, rules: Rules = NEWEST) -> None:
        settings = AllocatorSettings() if settings is None else settings
        self._heap = heap = Heap(memory, settings, rules)
        self._small, self._large, self._live = heap.small, heap.large, heap.live
        self._statistics = heap.statistics
        self._events: dict[int, list[Block]] = {}
        # With default settings a search is one look into an ordered list.
        self._is_plain = False
        self.memory_fraction = 1.0
        if settings.memory_fraction < 1:
            self.set_memory_fraction(settings.memory_fraction)
        self._update_is_plain()

    @property
    def memory(self) -> DeviceMemory:
        """The driver's memory."""
        return self._heap.memory

    @property
    def heap(self) -> Heap:
        """The allocator's state."""
        return self._heap

    @property
    def allocated_bytes(self) -> int:
        """As `torch.cuda.memory_allocated`."""
        return self._statistics.current(2)

    @property
    def peak_allocated_bytes(self) -> int:
        """As `torch.cuda.max_memory_allocated`."""
        return self._statistics.peak(2)

    @property
    def reserved_bytes(self) -> int:
        """As `torch.cuda.memory_reserved`."""
        return self._statistics.reserved_bytes.current

    @property
    def peak_reserved_bytes(self) -> int:
        """As `torch.cuda.max_memory_reserved`."""
        return self._statistics.reserved_bytes.peak

    @property
    def retries(self) -> int:
        """Number of times that all cached memory was returned before another try."""
        return self._statistics.retries

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Allocate memory.

        Args:
            nbytes: Bytes; 0 allocates nothing.
            stream: The stream that will use it.

        Returns:
            The address; 0 for no bytes.

        Raises:
            AllocationError: Memory is out.
        """
        if not 0 < nbytes < EXBIBYTE:
            if nbytes >= EXBIBYTE:
                raise more_than_an_exbibyte()
            return 0
        if self._events:
            self._free_pending()
        divisions = self._heap.settings.divisions
        size = rounded_size(nbytes, divisions) if divisions else (nbytes + 511) & -512
        pool = self._small if size <= LARGEST_SMALL else self._large
        block = None
        if self._is_plain:
            keys = pool.keys.get(stream)
            if keys is not None:
                index = bisect_left(keys, size << KEY_BITS)
                if index < len(keys):
                    block = pool.free.pop(keys.pop(index))
        else:
            if self._heap.collects_garbage:
                pool.searches += 1
            block = find_free(self._heap.settings, pool, size, stream)
        if block is None:
            asked = segment_size(size, self._heap.settings.large_segment)
            block = allocate_block(self._heap, Request(nbytes, size, asked, stream, pool), self.empty_cache)
        return self._hand_out(block, size, nbytes)

    def free(self, address: int) -> None:
        """Free an allocation.

        Raises:
            ValueError: There is no allocation at the address.
        """
        if not address:
            return
        block = self._live_block(address)
        statistics = block.pool.statistics
        if self._statistics.grown:
            self._statistics.settle()
        statistics.blocks_out += 1
        statistics.bytes_out += block.size
        if block.size >= self._heap.settings.largest_split:
            self._statistics.oversize_allocations.decrease(1)
        if block.used_on:
            self._wait_for_streams(block)
        else:
            self._free_block(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Record that another stream uses an allocation, as `Tensor.record_stream` does.

        Raises:
            ValueError: There is no allocation at the address.
        """
        block = self._live_block(address)
        if stream != block.stream:
            block.used_on = (block.used_on or set()) | {stream}

    def empty_cache(self) -> None:
        """Return cached memory to the driver, as `torch.cuda.empty_cache` does."""
        self._statistics.synchronizations += 1
        if self._events:
            self._free_pending()
        release_all(self._heap)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit memory as `torch.cuda.set_per_process_memory_fraction` does."""
        self.memory_fraction = fraction
        limits = fraction < 1 or self._heap.rules.whole_fraction_limits
        self._heap.limit = int(fraction * self._heap.card_bytes) if limits else None
        self._update_is_plain()

    def reset_peak_stats(self) -> None:
        """Reset peaks as `torch.cuda.reset_peak_memory_stats` does."""
        self._statistics.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """Reset counters as `torch.cuda.reset_accumulated_memory_stats` does."""
        self._statistics.reset_totals()

    def memory_stats(self) -> dict[str, Any]:
        """Return the statistics of `torch.cuda.memory_stats_as_nested_dict`."""
        heap = self._heap
        largest = heap.settings.largest_split
        stats = self._statistics.as_torch() | {"max_split_size": -1 if largest == NO_LIMIT else largest}
        if not heap.rules.counts_rejections:
            del stats["num_oom_rejections"]
        return stats

    def segments(self) -> list[Segment]:
        """Return the segments by address; of an expandable segment, each mapped range."""
        return list_segments(self._heap)

    def observe_segments(self, observer: Callable[[SegmentAction, int, int], None]) -> None:
        """Call `observer` with the history's action, address and bytes of every segment that comes or goes."""
        self._heap.observer = observer

    def _live_block(self, address: int) -> Block:
        block = self._live.get(address)
        if block is None or block.state != LIVE:
            raise ValueError(f"invalid device pointer: {address:#x}")
        return block

    def _update_is_plain(self) -> None:
        settings = self._heap.settings
        fixed = settings.largest_split == NO_LIMIT and not settings.expandable
        self._is_plain = fixed and not self._heap.collects_garbage

    def _hand_out(self, block: Block, size: int, requested: int) -> int:
        """Split off the rest of a block, count the allocation, and return its address."""
        pool = block.pool
        statistics = pool.statistics
        settings = self._heap.settings
        rest = block.size - size
        fine = pool.small or settings.expandable
        if rest >= SMALLEST_BLOCK if fine else rest > LARGEST_SMALL and size < settings.largest_split:
            self._split(block, size, rest)
        elif block.segment is None and (block.before is not None or block.after is not None):
            self._statistics.count_split(statistics, -1, -block.size)
        block.state = LIVE
        block.requested = requested
        self._live[block.address] = block
        statistics.blocks_in += 1
        statistics.bytes_in += block.size
        statistics.requested_in += requested
        self._statistics.grown = True
        if block.size >= settings.largest_split:
            self._statistics.oversize_allocations.increase(1)
        return block.address

    def _split(self, block: Block, size: int, rest: int) -> None:
        pool = block.pool
        after = block.after
        if block.segment is None:
            if after is None and block.before is None:
                self._statistics.count_split(pool.statistics, 1, rest)
            else:
                self._statistics.count_split(pool.statistics, 0, -size)
        other = Block(block.address + size, rest, block.stream, pool, block.segment, block.rank)
        other.before = block
        other.after = after
        if after is not None:
            after.before = other
        block.after = other
        block.size = size
        pool.put(other)

    def _free_block(self, block: Block) -> None:
        """Put a block into its pool, merged with free neighbours."""
        pool = block.pool
        statistics = pool.statistics
        statistics.requested_out += block.requested
        del self._live[block.address]
        original, merged = block.size, 0
        for other in (block.before, block.after):
            if other is not None and other.state == FREE:
                key = other.size << KEY_BITS | other.rank | other.address
                del pool.free[key]
                keys = pool.keys[block.stream]
                del keys[bisect_left(keys, key)]
                absorb(block, other)
                merged += 1
        block.state = FREE
        if block.segment is None:
            if block.before is not None or block.after is not None:
                self._statistics.count_split(statistics, 1 - merged, original)
            elif merged:
                self._statistics.count_split(statistics, -merged, original - block.size)
        pool.put(block)

    def _wait_for_streams(self, block: Block) -> None:
        streams, block.used_on = block.used_on or set(), None
        block.state = PENDING
        block.events = len(streams)
        for stream in streams:
            self._events.setdefault(stream, []).append(block)
        statistics = block.pool.statistics
        statistics.pending += 1
        statistics.pending_bytes += block.size

    def _free_pending(self) -> None:
        """Free the blocks that waited for other streams, whose events have happened."""
        events, self._events = self._events, {}
        for blocks in events.values():
            for block in blocks:
                block.events -= 1
                if not block.events:
                    block.pool.statistics.pending -= 1
                    block.pool.statistics.pending_bytes -= block.size
                    self._free_block(block)
