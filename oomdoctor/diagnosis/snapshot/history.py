"""The history of one device, replayed: every block, the bytes at each event, and the moment that counts.

The moment that counts is the last time when memory ran out, if the program died of it: what the error's unwinding frees
before somebody writes the snapshot was there when it mattered. A program that went on after it, say with a smaller
batch, is described as the snapshot found it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.lifetimes import OLDER, pair
from oomdoctor.diagnosis.snapshot.packing import go_back
from oomdoctor.diagnosis.snapshot.raw import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.snapshot.lifetimes import Lifetime
    from oomdoctor.diagnosis.snapshot.packing import Span
    from oomdoctor.diagnosis.snapshot.raw import DeviceSnapshot, TraceEvent

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
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.device.events)

    @property
    def peak(self) -> int:
        """Events until the peak, the first of several."""
        return self.allocated.index(max(self.allocated))

    def is_live(self, lifetime: Lifetime, moment: int) -> bool:
        """Whether a block is in a live tensor after so many events."""
        return lifetime.born < moment <= lifetime.died

    def is_live_at_moment(self, lifetime: Lifetime) -> bool:
        """Whether it is at the moment that counts."""
        return lifetime.held if self.failure is None else self.is_live(lifetime, self.moment)

    def is_in_use_at_moment(self, lifetime: Lifetime) -> bool:
        """The same, or it is freed and its place cannot be used yet."""
        if self.failure is None:
            return lifetime.held or lifetime.died < self.count <= lifetime.released
        return lifetime.born < self.moment <= lifetime.released


def replay(device: DeviceSnapshot) -> History:
    """Go through a device's history forwards, to pair, and backwards, to measure."""
    lifetimes = pair(device)
    failed = _failed_at(device, lifetimes)
    moment = len(device.events) if failed is None else failed + 1
    reserved, spans = go_back(device, lifetimes, moment)
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
