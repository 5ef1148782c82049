"""Replay of a recorded history: driven by its allocations and frees, the simulator must reach the same segments.

The history says whether the driver had memory, so that neither the card nor its other users need be known. The
simulator decides the address of each block, the requests to the driver, and the blocks that are returned.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NoReturn

from oomdoctor.agent.allocator_blocks import NO_LIMIT, SMALL_SEGMENT
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory, pytorch_size
from oomdoctor.engines.allocator.heap import LIVE, UNMAPPED, Block
from oomdoctor.engines.allocator.history import HeldSegment, HistoryEvent, state_before
from oomdoctor.engines.allocator.segments import ExpandableSegment, releasable
from oomdoctor.units import TIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.engines.allocator.heap import Heap, SegmentAction
    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules


_SPARE_ADDRESSES = TIB
"""Addresses added after the known end of an expandable segment, more than any card has."""


def restore(heap: Heap, segments: Iterable[HeldSegment]) -> None:
    """Restore held segments in a heap that holds nothing.

    Ranges of expandable segments of the same stream and pool become parts of one segment.

    Args:
        heap: The allocator's state.
        segments: The segments held.
    """
    expandable = []
    for segment in segments:
        if segment.expandable:
            expandable.append(segment)
        else:
            _link_neighbours(_blocks(heap, segment, None))
    expandable.sort(key=_stream_and_pool)
    for _, stretches in groupby(expandable, key=_stream_and_pool):
        _restore_expandable(heap, sorted(stretches, key=lambda stretch: stretch.address))


def _stream_and_pool(segment: HeldSegment) -> tuple[int, bool]:
    return segment.stream, segment.small


def _restore_expandable(heap: Heap, stretches: list[HeldSegment]) -> None:
    first, last = stretches[0], stretches[-1]
    page = SMALL_SEGMENT if first.small else heap.settings.large_segment
    end = last.address + last.size + -(-_SPARE_ADDRESSES // page) * page
    whole = ExpandableSegment(first.address, end - first.address, page)
    blocks: list[Block] = []
    for stretch, after in zip(stretches, [*(stretch.address for stretch in stretches[1:]), end], strict=True):
        blocks += _blocks(heap, stretch, whole)
        gap = blocks[-1].other_part(stretch.address + stretch.size, after - stretch.address - stretch.size)
        gap.state = UNMAPPED
        gap.pool.put_unmapped(gap)
        blocks.append(gap)
    _link_neighbours(blocks)


def _blocks(heap: Heap, segment: HeldSegment, whole: ExpandableSegment | None) -> list[Block]:
    """Make the blocks of a range and put each into the heap."""
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


def _link_neighbours(blocks: list[Block]) -> None:
    for before, after in pairwise(blocks):
        before.after, after.before = after, before


_FROM_DRIVER: Final = frozenset({"segment_alloc", "segment_map"})
_TO_DRIVER: Final = frozenset({"segment_free", "segment_unmap"})
_REQUESTS: Final = frozenset({"alloc", "oom"})
_END: Final = HistoryEvent("end", 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Departure:
    """The point at which simulator and history differ.

    Attributes:
        event: Position of the event in the history, from 0.
        text: The simulator's action and the history's.
    """

    event: int
    text: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of replaying a history.

    Attributes:
        events: Number of allocations and frees replayed.
        segment_events: Number of segment events that agree.
        departure: The first difference; None where the history replays to its end.
        is_certain: Whether nothing was guessed: the history has the allocator's first allocation; expandable segments,
            whose addresses are in no event before they are mapped, are of one stream; and no free waited for another
            stream, since no event says whether blocks were searched before or after it was done.
    """

    events: int
    segment_events: int
    departure: Departure | None
    is_certain: bool


def replay_history(
    segments: Sequence[HeldSegment], events: Sequence[HistoryEvent], settings: AllocatorSettings, rules: Rules
) -> Replay:
    """Replay a history.

    Args:
        segments: The segments at the time of the snapshot.
        events: The history.
        settings: The allocator's settings.
        rules: The rules of the version of torch.

    Raises:
        UnreadableHistoryError: The history contradicts itself or the segments.
    """
    return _Replayer(state_before(segments, events, settings), events, settings, rules).run()


class _DepartureError(Exception):
    """The simulator and the history differ."""


class _Replayer:
    def __init__(
        self, before: Sequence[HeldSegment], events: Sequence[HistoryEvent], settings: AllocatorSettings, rules: Rules
    ) -> None:
        self.events = events
        self.position = 0
        self.replayed = 0
        self.segment_events = 0
        self.stream = 0
        self.returning: set[tuple[str, int, int]] = set()
        self.settings = settings
        self.allocator = CachingAllocator(_RecordedMemory(self), settings, rules)
        self.allocator.set_memory_fraction(1)
        self.heap: Heap = self.allocator.heap
        self.heap.limit = None
        restore(self.heap, before)
        self.mapped: dict[int, list[int]] = {}  # positions, by stream
        for position, event in enumerate(events):
            if event.action == "segment_map":
                self.mapped.setdefault(event.stream, []).append(position)
        self.is_certain = (
            not before
            and len(self.mapped) <= 1
            and not any(
                event.action == "free_requested" and (after.action, after.address) != ("free_completed", event.address)
                for event, after in pairwise(events)
            )
        )
        self.allocator.observe_segments(self.observe)

    def run(self) -> Replay:
        try:
            while self.position < len(self.events):
                self.step(self.next())
        except _DepartureError as found:
            return self.result(Departure(self.position, str(found)))
        return self.result(None)

    def result(self, departure: Departure | None) -> Replay:
        return Replay(self.replayed, self.segment_events, departure, self.is_certain)

    def next(self) -> HistoryEvent:
        return self.events[self.position] if self.position < len(self.events) else _END

    def next_mapped(self) -> int:
        """Return the next address that the history maps for the stream of the request."""
        mapped = self.mapped.get(self.stream, [])
        at = bisect_left(mapped, self.position)
        return self.events[mapped[at]].address if at < len(mapped) else 0

    def step(self, event: HistoryEvent) -> None:
        if event.action in _REQUESTS or event.action in _FROM_DRIVER:
            self.allocate()
        elif event.action == "free_completed":
            self.free(event)
        elif event.action in _TO_DRIVER:
            self.return_segments()
        else:
            self.position += 1

    def allocate(self) -> None:
        """Serve the next request, whose segment events may precede it."""
        position = self.position
        while position < len(self.events) and self.events[position].action not in _REQUESTS:
            position += 1
        if position == len(self.events):
            self.position = position  # the recording ended before the request of the segments
            return
        asked = self.events[position]
        self.stream = asked.stream
        try:
            address: int | None = self.allocator.malloc(asked.size, asked.stream)
        except AllocationError:
            address = None
        self.check_all_gone()
        self.check_answer(asked, address)
        self.position = position + 1
        self.replayed += 1

    def check_answer(self, asked: HistoryEvent, address: int | None) -> None:
        size = pytorch_size(asked.size)
        if self.next() is not asked:
            self.depart(f"{size} need no more from the driver")
        if address is None and asked.action == "alloc":
            self.depart(f"there is no room for {size}")
        if address is not None and address != asked.address:
            self.depart(f"{size} are put at {address:#x}")

    def free(self, event: HistoryEvent) -> None:
        try:
            self.allocator.free(event.address)
        except ValueError:
            self.depart(f"nothing is allocated at {event.address:#x}")
        self.position += 1
        self.replayed += 1

    def return_segments(self) -> None:
        """Return segments, because the cache was emptied or a later request needs the memory."""
        returned, cached = self.returned_together(), releasable(self.heap)
        keeps_some = self.settings.collection_threshold > 0 or self.settings.largest_split < NO_LIMIT
        if returned == cached.keys():
            self.allocator.empty_cache()
        elif keeps_some and returned < cached.keys():
            for segment, release in cached.items():
                if segment in returned:
                    release()
        else:
            odd = next(iter(sorted(returned ^ cached.keys(), key=lambda segment: segment[1])))
            self.depart(f"{pytorch_size(odd[2])} at {odd[1]:#x} can {'not ' if odd in returned else ''}be given back")
        self.check_all_gone()

    def returned_together(self) -> set[tuple[str, int, int]]:
        """Return the segments that are returned one after another from here on."""
        position, found = self.position, set()
        while position < len(self.events) and self.events[position].action in _TO_DRIVER:
            found.add(self.events[position][:3])
            position += 1
        return found

    def observe(self, action: SegmentAction, address: int, size: int) -> None:
        """Compare the simulator's segment event with the history; segments are returned in any order."""
        if action in _FROM_DRIVER:
            if self.next()[:3] != (action, address, size):
                self.depart(f"`{action}` of {pytorch_size(size)} at {address:#x}")
            self.position += 1
        else:
            if not self.returning:
                self.returning = self.returned_together()
                self.position += len(self.returning)
            if (action, address, size) not in self.returning:
                self.depart(f"`{action}` of {pytorch_size(size)} at {address:#x}")
            self.returning.discard((action, address, size))
        self.segment_events += 1

    def check_all_gone(self) -> None:
        if self.returning:
            action, address, size = min(self.returning)
            self.position -= 1
            self.depart(f"no `{action}` of {pytorch_size(size)} at {address:#x}")

    def refuse(self) -> bool:
        """Return whether the driver had no memory here, by the next events; pending blocks are freed first."""
        while self.next().action == "free_completed":
            self.free(self.next())
        return bool(self.returning) or self.next().action in _TO_DRIVER or self.next().action == "oom"

    def depart(self, text: str) -> NoReturn:
        event = self.next()
        there = "ends" if event is _END else f"has `{event.action}` of {pytorch_size(event.size)} at {event.address:#x}"
        raise _DepartureError(f"by the allocator's rules {text}, and the history {there}")


class _RecordedMemory(DeviceMemory):
    """A driver that has memory where the history has it."""

    def __init__(self, replayer: _Replayer) -> None:
        super().__init__(TIB)
        self.replayer = replayer

    def allocate(self, size: int) -> int | None:
        """Return the history's address, if it is for as many bytes."""
        event = self.replayer.next()
        if not self.replayer.returning and event.action == "segment_alloc" and event.size == size:
            return event.address
        if not self.replayer.refuse():
            self.replayer.depart(f"the driver is asked for {pytorch_size(size)}")
        return None

    def release(self, address: int) -> None:
        """Do nothing: the observer compares returned segments."""

    def charge(self, size: int) -> bool:
        """Return whether the history maps as many bytes."""
        event = self.replayer.next()
        if not self.replayer.returning and event.action == "segment_map" and event.size == size:
            return True
        if not self.replayer.refuse():
            self.replayer.depart(f"{pytorch_size(size)} are mapped")
        return False

    def refund(self, size: int) -> None:
        """Do nothing: the observer compares returned segments."""

    def reserve(self, size: int) -> int:  # noqa: ARG002 - a range begins where it is mapped first, whatever its size
        """Return the next address that the history maps, possibly later: an unused range is kept."""
        return self.replayer.next_mapped()

    def unreserve(self, address: int) -> int:  # noqa: ARG002 - nothing is kept of ranges
        """Do nothing: the history has no event for it."""
        return 0
