"""A memory history: events, segments, and the state before the first event.

The state before is found by undoing the events, last first, from the state at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from oomdoctor.agent.allocator_blocks import LARGEST_SMALL, NO_LIMIT, SMALL_SEGMENT, rounded_size
from oomdoctor.engines.allocator.heap import ADDRESS_BITS
from oomdoctor.engines.allocator.settings import LARGE_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.engines.allocator.settings import AllocatorSettings


class HistoryEvent(NamedTuple):
    """One entry of the history.

    Attributes:
        action: PyTorch's name of the event: `alloc`, `free_completed`, `segment_map` and so on.
        address: Its address.
        size: Bytes requested; of segments, their size.
        stream: Its stream.
    """

    action: str
    address: int
    size: int
    stream: int


class UsedBlock(NamedTuple):
    """A block in use.

    Attributes:
        address: Its first address.
        size: Its bytes.
        requested: Bytes requested.
    """

    address: int
    size: int
    requested: int


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A range of memory from the driver, free where no block uses it.

    Attributes:
        address: Its first address.
        size: Its bytes.
        stream: The stream that it belongs to.
        small: Whether it is of the small pool.
        expandable: Whether it is a range of an expandable segment.
        used: The blocks in use, by address.
    """

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    used: tuple[UsedBlock, ...]


class UnreadableHistoryError(Exception):
    """The history contradicts itself or the segments; the text says where."""


class Stretch(NamedTuple):
    """A range of addresses held from the driver: a segment, or a mapped part of an expandable one.

    Attributes:
        start: Its first address.
        end: The address after its last.
        stream: The stream that it belongs to.
        small: Whether it is of the small pool.
        expandable: Whether it is of an expandable segment.
    """

    start: int
    end: int
    stream: int
    small: bool
    expandable: bool


class HeldRanges:
    """The ranges held from the driver, while a history is followed or undone.

    Attributes:
        stretches: By address. Those of one expandable segment that touch are one.
    """

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self.stretches = sorted(stretches)
        for index in range(len(self.stretches) - 2, -1, -1):
            self._join(index)

    def around(self, address: int) -> Stretch | None:
        """Return the range that contains an address; None where there is none."""
        index = self._index(address)
        return None if index is None else self.stretches[index]

    def add(self, stretch: Stretch) -> None:
        """Add a range."""
        insort(self.stretches, stretch)
        if stretch.expandable:
            index = bisect_right(self.stretches, stretch) - 1
            self._join(index)
            if index:
                self._join(index - 1)

    def remove(self, start: int, end: int) -> bool:
        """Remove a range, or a part of one; False where it is not held."""
        index = self._index(start)
        if index is None or self.stretches[index].end < end:
            return False
        whole = self.stretches[index]
        parts = (whole._replace(end=start), whole._replace(start=end))
        self.stretches[index : index + 1] = [part for part in parts if part.start < part.end]
        return True

    def _index(self, address: int) -> int | None:
        index = bisect_right(self.stretches, address, key=lambda stretch: stretch.start) - 1
        return index if index >= 0 and address < self.stretches[index].end else None

    def _join(self, index: int) -> None:
        first, *after = self.stretches[index : index + 2]
        if after and after[0][:3:2] == (first.end, first.stream) and after[0].expandable and first.expandable:
            small = first.small or after[0].small
            self.stretches[index : index + 2] = [first._replace(end=after[0].end, small=small)]


_UNKNOWN_SIZE: Final = -1
_ADDRESSES: Final = 1 << (ADDRESS_BITS - 1)
"""Addresses of a process: half of the hardware's."""


class _PastState:
    """The state of the allocator, while events are undone."""

    def __init__(self, segments: Iterable[HeldSegment]) -> None:
        self.used: dict[int, UsedBlock] = {}
        stretches = []
        for segment in segments:
            end = segment.address + segment.size
            stretches.append(Stretch(segment.address, end, segment.stream, segment.small, segment.expandable))
            self.used |= {block.address: block for block in segment.used}
        self.held = HeldRanges(map(_addressable, stretches))

    def undo(self, event: HistoryEvent) -> None:
        action, address, size, stream = event
        if action == "alloc":
            if self.used.pop(address, None) is None:
                raise UnreadableHistoryError(f"a block at {address:#x} was allocated, and is neither freed nor there")
        elif action == "free_completed":
            self.used[address] = UsedBlock(address, _UNKNOWN_SIZE, size)
        elif action in {"segment_alloc", "segment_map"}:
            if not self.held.remove(address, address + size):
                raise UnreadableHistoryError(
                    f"memory at {address:#x} came from the driver, and neither went back nor is there"
                )
        elif action in {"segment_free", "segment_unmap"}:
            # Of an expandable segment only its blocks tell later which pool it is of.
            expandable = action == "segment_unmap"
            small = size == SMALL_SEGMENT and not expandable
            self.held.add(_addressable(Stretch(address, address + size, stream, small, expandable)))


def _addressable(stretch: Stretch) -> Stretch:
    if not 0 <= stretch.start < stretch.end <= _ADDRESSES:
        raise UnreadableHistoryError(f"there is no memory from {stretch.start:#x} to {stretch.end:#x}")
    return stretch


def state_before(
    segments: Iterable[HeldSegment], events: Sequence[HistoryEvent], settings: AllocatorSettings
) -> list[HeldSegment]:
    """Return the segments that the allocator held before the first event.

    Args:
        segments: The segments at the time of the snapshot.
        events: The history.
        settings: The allocator's settings.

    Raises:
        UnreadableHistoryError: The history contradicts itself or the segments.
    """
    before = _PastState(segments)
    for event in reversed(events):
        if event.action != "oom" and not 0 <= event.address < _ADDRESSES - event.size:
            raise UnreadableHistoryError(f"there is no address {event.address:#x} with {event.size} bytes after it")
        before.undo(event)
    used = [before.used[address] for address in sorted(before.used)]
    for one, other in pairwise(before.held.stretches):
        if other.start < one.end:
            raise UnreadableHistoryError(f"segments overlap at {other.start:#x}")
    asked = sorted((event.address, event.size) for event in events if event.action == "alloc")
    return [_held_segment(stretch, _blocks_within(used, stretch), asked, settings) for stretch in before.held.stretches]


def _blocks_within(used: list[UsedBlock], stretch: Stretch) -> list[UsedBlock]:
    first = bisect_right(used, stretch.start - 1, key=lambda block: block.address)
    return used[first : bisect_right(used, stretch.end - 1, key=lambda block: block.address)]


def _held_segment(
    stretch: Stretch, used: list[UsedBlock], asked: list[tuple[int, int]], settings: AllocatorSettings
) -> HeldSegment:
    small = _is_small(stretch, used, asked) if stretch.expandable else stretch.small
    ends = [*(block.address for block in used[1:]), stretch.end][: len(used)]
    sized = tuple(
        block if block.size != _UNKNOWN_SIZE else block._replace(size=_size(block, end, stretch, settings))
        for block, end in zip(used, ends, strict=True)
    )
    if any(block.address + block.size > end for block, end in zip(sized, ends, strict=True)):
        raise UnreadableHistoryError(f"blocks overlap in the segment at {stretch.start:#x}")
    size = stretch.end - stretch.start
    return HeldSegment(stretch.start, size, stretch.stream, small, stretch.expandable, sized)


def _is_small(stretch: Stretch, used: list[UsedBlock], asked: list[tuple[int, int]]) -> bool:
    """Return whether an expandable segment is of the small pool, by its blocks, its next request, or its size."""
    later = asked[bisect_left(asked, (stretch.start, 0)) :][:1]
    requested = used[0].requested if used else next((size for at, size in later if at < stretch.end), None)
    if requested is not None:
        return requested <= LARGEST_SMALL
    return stretch.small or (stretch.end - stretch.start) % LARGE_SEGMENT > 0


def _size(block: UsedBlock, end: int, stretch: Stretch, settings: AllocatorSettings) -> int:
    """Return the bytes of a block of which only the request is known."""
    size = rounded_size(block.requested, settings.divisions)
    return size_when_cut(size, end - block.address, expandable=stretch.expandable, largest_split=settings.largest_split)


def size_when_cut(size: int, room: int, *, expandable: bool, largest_split: int = NO_LIMIT) -> int:
    """Return the bytes of a block that is cut from a free one: a rest too small to be split off stays in it.

    Args:
        size: Bytes that the request needs, rounded up.
        room: Bytes of the free block.
        expandable: Whether the segment is expandable, and so cut to size whatever the rest.
        largest_split: Blocks of at least so many bytes are never split.

    Source: `should_split` in c10/cuda/CUDACachingAllocator.cpp.
    """
    unsplit = not expandable and size > LARGEST_SMALL and (room - size <= LARGEST_SMALL or size >= largest_split)
    return room if unsplit else size
