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

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.allocator_blocks import rounded_size
from oomdoctor.diagnose.snapshot.layout import AllocatorAction, BlockState
from oomdoctor.engines.allocator.history import HeldRanges, Stretch, size_when_cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnose.snapshot.layout import DeviceSnapshot, SnapshotBlock, TraceEvent


OLDER: Final = -1
"""Where a block was allocated that is older than the history."""


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
        if event.action is AllocatorAction.ALLOC:
            self._allocate(index, event)
        elif event.action is AllocatorAction.FREE_REQUESTED:
            self._free(index, event)
        elif event.action is AllocatorAction.FREE_COMPLETED:
            lifetime = self.pending.pop(event.address, None)
            if lifetime is not None:
                lifetime.released = index

    def _allocate(self, index: int, event: TraceEvent) -> None:
        lost = self.live.pop(event.address, None)
        if lost is not None:  # its end was not recorded, but it has ended
            lost.died = lost.released = index
        self.pending.pop(event.address, None)
        count = self.count
        new = Lifetime(event.address, rounded_size(event.size), event.size, event.stack, index, count, count)
        self.live[event.address] = new
        self.seen.add(event.address)
        self.lifetimes.append(new)

    def _free(self, index: int, event: TraceEvent) -> None:
        lifetime = self.live.pop(event.address, None)
        if lifetime is None:
            # Where frees have no stack of their own, the history shows the allocation's, but one cannot tell which.
            lifetime = Lifetime(event.address, rounded_size(event.size), event.size, 0, OLDER, index, self.count)
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


# No program has as many; each costs a little more than the one before.
_MOST_STRETCHES: Final = 200_000

_MAPPINGS: Final = {AllocatorAction.SEGMENT_MAP, AllocatorAction.SEGMENT_UNMAP}
_GROWTHS: Final = {AllocatorAction.SEGMENT_ALLOC, AllocatorAction.SEGMENT_MAP}
_SHRINKAGES: Final = {AllocatorAction.SEGMENT_FREE, AllocatorAction.SEGMENT_UNMAP}


def undo_history(
    device: DeviceSnapshot, lifetimes: Sequence[Lifetime], moment: int
) -> tuple[list[int], tuple[Stretch, ...]]:
    """Set the real sizes of the lifetimes, and tell what was held from the driver.

    Args:
        device: The device's segments and history.
        lifetimes: As paired; `size` of those that are gone is corrected in place.
        moment: A number of events.

    Returns:
        Bytes held before the first event and after each, one more than there are events, and the stretches of memory
        that were held after `moment` events.
    """
    held = HeldRanges(
        Stretch(segment.address, segment.address + segment.size, segment.stream, segment.small, segment.expandable)
        for segment in device.segments
    )
    sizes = _Sizes(device, lifetimes, held)
    bytes_held = sum(segment.size for segment in device.segments)
    reserved = [bytes_held]
    at_moment = tuple(held.stretches)
    for index in range(len(device.events) - 1, -1, -1):
        event = device.events[index]
        if event.action in _GROWTHS:
            bytes_held -= event.size * held.remove(event.address, event.address + event.size)
        elif event.action in _SHRINKAGES:
            bytes_held += event.size
            if event.size > 0 and len(held.stretches) < _MOST_STRETCHES:
                expandable = event.action is AllocatorAction.SEGMENT_UNMAP
                end = event.address + event.size
                held.add(Stretch(event.address, end, event.stream, small=False, expandable=expandable))
        else:
            sizes.undo(index)
        reserved.append(bytes_held)
        if index == moment:
            at_moment = tuple(held.stretches)
    return reserved[::-1], at_moment


class _Sizes:
    """Addresses of the blocks in use while the history is undone."""

    def __init__(self, device: DeviceSnapshot, lifetimes: Sequence[Lifetime], held: HeldRanges) -> None:
        count = len(device.events)
        self.held = held
        self.begun = {lifetime.born: lifetime for lifetime in lifetimes if OLDER < lifetime.born < count}
        self.released = {lifetime.released: lifetime for lifetime in lifetimes if lifetime.released < count}
        self.used = sorted(lifetime.address for lifetime in lifetimes if lifetime.released >= count)[:_MOST_STRETCHES]
        # An expandable segment is cut to size whatever the rest.
        self.expandable = any(segment.expandable for segment in device.segments) or any(
            event.action in _MAPPINGS for event in device.events
        )

    def undo(self, index: int) -> None:
        ended = self.released.get(index)
        if ended is not None and len(self.used) < _MOST_STRETCHES:
            insort(self.used, ended.address)
        begun = self.begun.get(index)
        if begun is None:
            return
        at = bisect_left(self.used, begun.address)
        if at < len(self.used) and self.used[at] == begun.address:
            del self.used[at]
        self._measure(begun, at)

    def _measure(self, lifetime: Lifetime, at: int) -> None:
        """Give a block that is gone the rest of its gap, where the allocator would not have split that off."""
        stretch = None if lifetime.held else self.held.around(lifetime.address)
        if stretch is None:
            return
        end = min(stretch.end, self.used[at]) if at < len(self.used) else stretch.end
        room = end - lifetime.address
        if lifetime.size < room:
            lifetime.size = size_when_cut(lifetime.size, room, expandable=self.expandable)


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
        moment: Events until the moment of the failure, or of the snapshot where there is none.
        failure: Event at which memory ran out, where that is the moment.
        held: Memory that the allocator holds from the driver at that moment.
    """

    device: DeviceSnapshot
    lifetimes: tuple[Lifetime, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    moment: int
    failure: TraceEvent | None
    held: tuple[Stretch, ...]

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
    reserved, held = undo_history(device, lifetimes, moment)
    return History(
        device=device,
        lifetimes=tuple(lifetimes),
        allocated=_allocated(lifetimes, len(device.events)),
        reserved=tuple(reserved),
        moment=moment,
        failure=None if failed is None else device.events[failed],
        held=held,
    )


def _failed_at(device: DeviceSnapshot, lifetimes: Sequence[Lifetime]) -> int | None:
    """The last event at which memory ran out, unless the program went on allocating."""
    events = device.events
    failed = next(
        (index for index in range(len(events) - 1, -1, -1) if events[index].action is AllocatorAction.OOM), None
    )
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
