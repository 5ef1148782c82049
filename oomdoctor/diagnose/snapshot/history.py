"""Replay the history of one device: lifetimes and sizes of blocks, bytes at each event, the failure.

The moment of the failure is the last time when memory ran out, if the program died of it: blocks that the error's
unwinding frees before the snapshot is written were alive then. A program that went on after it, say with a smaller
batch, is described as it was when the snapshot was taken.

A history is a ring buffer: its beginning may be lost, and recording may have begun late. Then a block that is live at
the end has no allocation in the history, or one is freed that was never allocated there. Both are older than the
history. Recording may also have stopped before the snapshot; then the history does not say what is live at the end, and
the blocks of the segments do.

A block can be larger than its request rounded up: the allocator does not split off a rest of at most 1 MiB from a block
of the large pool. The events are undone, last first, from the end, where the place of every block is known. Undoing an
allocation leaves the gap that the request found, and so tells the block's size: the allocated bytes are those that
PyTorch itself counted.

Source: `should_split` in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.snapshot.layout import Action, BlockState
from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnose.snapshot.layout import DeviceSnapshot, SnapshotBlock, TraceEvent


OLDER: Final = -1
"""Where a block was allocated that is older than the history."""

_SMALLEST_BLOCK: Final = 512


@dataclass(slots=True)
class Lifetime:
    """One block from its allocation to its end.

    Attributes:
        address: Where it begins.
        size: Its bytes as `torch.cuda.memory_allocated` counts them; of a block that is gone they are rounded up here.
        requested: Bytes that were asked for.
        stack: Index in the snapshot's stacks of where it was allocated.
        born: Event that allocated it; -1 if older than the history, the number of events if younger.
        died: Event that freed it; the number of events if none did.
        released: Event after which its bytes could be used again, later than `died` where a stream still used it.
        freed_by: Index of the stack that freed it; 0 where nothing did, or nothing in Python.
        held: Whether it is live in the segments, when the snapshot was taken.
    """

    address: int
    size: int
    requested: int
    stack: int
    born: int
    died: int
    released: int
    freed_by: int = 0
    held: bool = False


def rounded(size: int) -> int:
    """Bytes of the block that a request gets, if it is split off a larger one.

    Source: `round_size` in c10/cuda/CUDACachingAllocator.cpp, without `roundup_power2_divisions`.
    """
    return max(_SMALLEST_BLOCK, -(-size // _SMALLEST_BLOCK) * _SMALLEST_BLOCK)


def pair(device: DeviceSnapshot) -> list[Lifetime]:
    """Every block that the history or the segments know, in the order in which they were allocated."""
    pairing = _Pairing(len(device.events))
    for index, event in enumerate(device.events):
        pairing.follow(index, event)
    for segment in device.segments:
        for block in segment.blocks:
            if block.state is not BlockState.FREE:
                pairing.settle(block)
    return sorted(pairing.lifetimes, key=lambda lifetime: lifetime.born)


class _Pairing:
    def __init__(self, count: int) -> None:
        self.count = count
        self.lifetimes: list[Lifetime] = []
        self.live: dict[int, Lifetime] = {}
        self.pending: dict[int, Lifetime] = {}
        self.seen: set[int] = set()

    def follow(self, index: int, event: TraceEvent) -> None:
        """Take one event into account."""
        if event.action is Action.ALLOC:
            self._allocate(index, event)
        elif event.action is Action.FREE_REQUESTED:
            self._free(index, event)
        elif event.action is Action.FREE_COMPLETED:
            lifetime = self.pending.pop(event.address, None)
            if lifetime is not None:
                lifetime.released = index

    def _allocate(self, index: int, event: TraceEvent) -> None:
        lost = self.live.pop(event.address, None)
        if lost is not None:  # its end was not recorded, but it has ended
            lost.died = lost.released = index
        self.pending.pop(event.address, None)
        count = self.count
        new = Lifetime(event.address, rounded(event.size), event.size, event.stack, index, count, count)
        self.live[event.address] = new
        self.seen.add(event.address)
        self.lifetimes.append(new)

    def _free(self, index: int, event: TraceEvent) -> None:
        lifetime = self.live.pop(event.address, None)
        if lifetime is None:
            # Where frees have no stack of their own, the history shows the allocation's, but one cannot tell which.
            lifetime = Lifetime(event.address, rounded(event.size), event.size, 0, OLDER, index, self.count)
            self.seen.add(event.address)
            self.lifetimes.append(lifetime)
        lifetime.died, lifetime.released, lifetime.freed_by = index, self.count, event.stack
        self.pending[event.address] = lifetime

    def settle(self, block: SnapshotBlock) -> None:
        """Take a block of the segments into account: it is in use at the end."""
        if block.state is BlockState.PENDING:
            lifetime = self.pending.get(block.address)
        else:
            lifetime = self.live.pop(block.address, None)
        if lifetime is None:
            if block.state is BlockState.PENDING:
                return
            born = self.count if block.address in self.seen else OLDER
            count = self.count
            lifetime = Lifetime(block.address, block.size, block.requested, block.stack, born, count, count)
            self.lifetimes.append(lifetime)
        lifetime.size = block.size
        lifetime.stack = lifetime.stack or block.stack  # the segments may keep stacks that the history does not
        lifetime.held = block.state is BlockState.LIVE


_LARGEST_SMALL: Final = MIB
_LARGEST_REST: Final = MIB
_BEYOND: Final = 1 << 70
# No program has as many; each costs a little more than the one before.
_MOST_RANGES: Final = 200_000

_MAPPINGS: Final = {Action.SEGMENT_MAP, Action.SEGMENT_UNMAP}
_GROWTHS: Final = {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP}
_SHRINKAGES: Final = {Action.SEGMENT_FREE, Action.SEGMENT_UNMAP}

AddressRange = tuple[int, int]
"""A segment or a mapped stretch: where it begins and where it ends."""


class HeldRanges:
    """The memory that the allocator holds from the driver, as stretches of addresses."""

    def __init__(self, spans: Sequence[AddressRange]) -> None:
        self._spans = sorted(spans)
        self.total = sum(end - begin for begin, end in self._spans)

    def around(self, address: int) -> AddressRange | None:
        """Return the stretch that contains an address."""
        at = self._index(address)
        return None if at is None else self._spans[at]

    def add(self, begin: int, size: int, *, joined: bool) -> None:
        """Hold a stretch, as one with its neighbours where it was mapped beside them."""
        self.total += size
        if len(self._spans) >= _MOST_RANGES:
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

    def stretches(self) -> tuple[AddressRange, ...]:
        """Return all stretches, by address."""
        return tuple(self._spans)

    def _joined(self, begin: int, end: int) -> AddressRange:
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


def undo_history(
    device: DeviceSnapshot, lifetimes: Sequence[Lifetime], moment: int
) -> tuple[list[int], tuple[AddressRange, ...]]:
    """Set the real sizes of the lifetimes, and tell what was held from the driver.

    Args:
        device: The device's segments and history.
        lifetimes: As paired; `size` of those that are gone is corrected in place.
        moment: A number of events.

    Returns:
        Bytes held before the first event and after each, one more than there are events, and the stretches of memory
        that were held after `moment` events.
    """
    spans = HeldRanges([(segment.address, segment.address + segment.size) for segment in device.segments])
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
    """Addresses of the blocks in use while the history is undone."""

    def __init__(self, device: DeviceSnapshot, lifetimes: Sequence[Lifetime], spans: HeldRanges) -> None:
        count = len(device.events)
        self.spans = spans
        self.begun = {lifetime.born: lifetime for lifetime in lifetimes if OLDER < lifetime.born < count}
        self.released = {lifetime.released: lifetime for lifetime in lifetimes if lifetime.released < count}
        self.places = sorted(lifetime.address for lifetime in lifetimes if lifetime.released >= count)[:_MOST_RANGES]
        # An expandable segment is cut to size whatever the rest.
        self.expandable = any(segment.expandable for segment in device.segments) or any(
            event.action in _MAPPINGS for event in device.events
        )

    def undo(self, index: int) -> None:
        ended = self.released.get(index)
        if ended is not None and len(self.places) < _MOST_RANGES:
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


# A handler that prints, or a hook that saves something small, is no program that went on.
_AFTERMATH_SHARE: Final = 16


@dataclass(frozen=True, slots=True)
class History:
    """A device's history.

    Attributes:
        device: As it was recorded.
        lifetimes: Every block, in the order of allocation.
        allocated: Bytes in live blocks before the first event and after each.
        reserved: Bytes held from the driver, at the same times.
        moment: Events until the moment that counts.
        failure: Event at which memory ran out, where that is the moment.
        spans: What is held from the driver at that moment.
    """

    device: DeviceSnapshot
    lifetimes: tuple[Lifetime, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    moment: int
    failure: TraceEvent | None
    spans: tuple[AddressRange, ...]

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.device.events)

    @property
    def peak(self) -> int:
        """Events until the peak, the first of several."""
        return self.allocated.index(max(self.allocated))

    def is_live(self, lifetime: Lifetime, moment: int) -> bool:
        """Return whether a block is in a live tensor after a number of events."""
        return lifetime.born < moment <= lifetime.died

    def is_live_at_moment(self, lifetime: Lifetime) -> bool:
        """Return whether a block is in a live tensor at the moment of the failure."""
        return lifetime.held if self.failure is None else self.is_live(lifetime, self.moment)

    def is_in_use_at_moment(self, lifetime: Lifetime) -> bool:
        """Return whether a block is live at the moment of the failure, or freed and not reusable yet."""
        if self.failure is None:
            return lifetime.held or lifetime.died < self.count <= lifetime.released
        return lifetime.born < self.moment <= lifetime.released


def replay(device: DeviceSnapshot) -> History:
    """Go through a device's history forwards, to pair, and backwards, to measure."""
    lifetimes = pair(device)
    failed = _failed_at(device, lifetimes)
    moment = len(device.events) if failed is None else failed + 1
    reserved, spans = undo_history(device, lifetimes, moment)
    return History(
        device=device,
        lifetimes=tuple(lifetimes),
        allocated=_allocated(lifetimes, len(device.events)),
        reserved=tuple(reserved),
        moment=moment,
        failure=None if failed is None else device.events[failed],
        spans=spans,
    )


def _failed_at(device: DeviceSnapshot, lifetimes: Sequence[Lifetime]) -> int | None:
    """The last event at which memory ran out, unless the program went on allocating."""
    events = device.events
    failed = next((index for index in range(len(events) - 1, -1, -1) if events[index].action is Action.OOM), None)
    if failed is None:
        return None
    held = sum(lifetime.size for lifetime in lifetimes if lifetime.born < failed <= lifetime.died)
    afterwards = sum(lifetime.size for lifetime in lifetimes if failed < lifetime.born)
    return failed if afterwards * _AFTERMATH_SHARE <= held else None


def _allocated(lifetimes: Sequence[Lifetime], count: int) -> tuple[int, ...]:
    changes = [0] * (count + 2)
    for lifetime in lifetimes:
        if lifetime.born < count:
            changes[0 if lifetime.born == OLDER else lifetime.born + 1] += lifetime.size
            changes[lifetime.died + 1] -= lifetime.size
    return tuple(accumulate(changes[: count + 1]))
