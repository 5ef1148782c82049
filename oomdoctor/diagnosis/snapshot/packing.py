"""Go back through a history, to learn what the allocator held at each event and how large each block really was.

A block can be larger than its request rounded up: the allocator does not split off a rest of at most 1 MiB from a block
of the large pool. Going back from the end, where every block's place is known, the room that each request found is the
gap that its undoing leaves; so its size follows, and the allocated bytes are those that PyTorch itself counted.

Source: `should_split` in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.lifetimes import OLDER
from oomdoctor.diagnosis.snapshot.raw import Action
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.snapshot.lifetimes import Lifetime
    from oomdoctor.diagnosis.snapshot.raw import DeviceSnapshot

_LARGEST_SMALL: Final = MIB
_LARGEST_REST: Final = MIB
_BEYOND: Final = 1 << 70
# No program has as many; each costs a little more than the one before.
_MOST_PLACES: Final = 200_000

_MAPPINGS: Final = {Action.SEGMENT_MAP, Action.SEGMENT_UNMAP}
_GROWTHS: Final = {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP}
_SHRINKAGES: Final = {Action.SEGMENT_FREE, Action.SEGMENT_UNMAP}

Span = tuple[int, int]
"""A segment or a mapped stretch: where it begins and where it ends."""


class Spans:
    """The memory that the allocator holds from the driver, as stretches of addresses."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)
        self.total = sum(end - begin for begin, end in self._spans)

    def around(self, address: int) -> Span | None:
        """The stretch that an address lies in."""
        at = self._index(address)
        return None if at is None else self._spans[at]

    def add(self, begin: int, size: int, *, joined: bool) -> None:
        """Hold a stretch, as one with its neighbours where it was mapped beside them."""
        self.total += size
        if len(self._spans) >= _MOST_PLACES:
            return
        end = begin + size
        if joined:
            begin, end = self._joined(begin, end)
        insort(self._spans, (begin, end))

    def remove(self, begin: int, size: int) -> None:
        """Hold a stretch no more; what the stretch around it has left stays."""
        end = begin + size
        at = self._index(begin)
        if at is None or self._spans[at][1] < end:
            return
        found = self._spans.pop(at)
        for rest in ((found[0], begin), (end, found[1])):
            if rest[0] < rest[1]:
                insort(self._spans, rest)
        self.total -= size

    def stretches(self) -> tuple[Span, ...]:
        """All of them, by address."""
        return tuple(self._spans)

    def _joined(self, begin: int, end: int) -> Span:
        """Take away the stretches on both sides, and give them back as one with what is between."""
        for address in (begin - 1, end):
            at = self._index(address)
            if at is not None:
                neighbour = self._spans.pop(at)
                begin, end = min(begin, neighbour[0]), max(end, neighbour[1])
        return begin, end

    def _index(self, address: int) -> int | None:
        at = bisect_right(self._spans, (address, _BEYOND)) - 1
        return at if at >= 0 and self._spans[at][0] <= address < self._spans[at][1] else None


def go_back(device: DeviceSnapshot, lifetimes: Sequence[Lifetime], moment: int) -> tuple[list[int], tuple[Span, ...]]:
    """Set the real sizes of the lifetimes, and tell what was held from the driver.

    Args:
        device: The device's segments and history.
        lifetimes: As paired; `size` of those that are gone is corrected in place.
        moment: A number of events.

    Returns:
        Bytes held before the first event and after each, one more than there are events, and the stretches of memory
        that were held after `moment` events.
    """
    spans = Spans([(segment.address, segment.address + segment.size) for segment in device.segments])
    sizes = _Sizes(device, lifetimes, spans)
    count = len(device.events)
    reserved = [0] * (count + 1)
    at_moment = spans.stretches()
    for index in range(count - 1, -1, -1):
        reserved[index + 1] = spans.total
        if index + 1 == moment:
            at_moment = spans.stretches()
        event = device.events[index]
        if event.action in _GROWTHS:
            spans.remove(event.address, event.size)
        elif event.action in _SHRINKAGES:
            spans.add(event.address, event.size, joined=event.action is Action.SEGMENT_UNMAP)
        else:
            sizes.undo(index)
    reserved[0] = spans.total
    return reserved, spans.stretches() if moment == 0 else at_moment


class _Sizes:
    """Where the blocks in use lie while the history is undone."""

    def __init__(self, device: DeviceSnapshot, lifetimes: Sequence[Lifetime], spans: Spans) -> None:
        count = len(device.events)
        self.spans = spans
        self.begun = {lifetime.born: lifetime for lifetime in lifetimes if OLDER < lifetime.born < count}
        self.released = {lifetime.released: lifetime for lifetime in lifetimes if lifetime.released < count}
        self.places = sorted(lifetime.address for lifetime in lifetimes if lifetime.released >= count)[:_MOST_PLACES]
        # An expandable segment is cut to size whatever the rest.
        self.expandable = any(segment.expandable for segment in device.segments) or any(
            event.action in _MAPPINGS for event in device.events
        )

    def undo(self, index: int) -> None:
        ended = self.released.get(index)
        if ended is not None and len(self.places) < _MOST_PLACES:
            insort(self.places, ended.address)
        begun = self.begun.get(index)
        if begun is None:
            return
        at = bisect_left(self.places, begun.address)
        if at < len(self.places) and self.places[at] == begun.address:
            del self.places[at]
        self._measure(begun, at)

    def _measure(self, lifetime: Lifetime, at: int) -> None:
        """Give a block that is gone the rest of its gap, where the allocator would not have split that off."""
        if lifetime.held or lifetime.size <= _LARGEST_SMALL or self.expandable:
            return
        span = self.spans.around(lifetime.address)
        if span is None:
            return
        end = min(span[1], self.places[at]) if at < len(self.places) else span[1]
        if lifetime.size < end - lifetime.address <= lifetime.size + _LARGEST_REST:
            lifetime.size = end - lifetime.address
