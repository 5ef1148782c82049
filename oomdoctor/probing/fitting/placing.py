"""Whether the allocator of a card can place what a step asks for, and what it holds at most while it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.allocator.caching import CachingAllocator
from oomdoctor.allocator.device_memory import DeviceMemory
from oomdoctor.allocator.out_of_memory import AllocationError
from oomdoctor.allocator.rounding import NO_LIMIT
from oomdoctor.units import TIB

if TYPE_CHECKING:
    from oomdoctor.allocator.rules import Rules
    from oomdoctor.allocator.settings import Settings
    from oomdoctor.probing.fitting.lowering import Events

_BOUNDLESS = 8 * TIB


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that a step has.

    Attributes:
        total_bytes: Of the card.
        context_bytes: What the process holds besides.
        allowed_bytes: Most that the allocator may hold in the trial.
    """

    total_bytes: int
    context_bytes: int
    allowed_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """What the allocator may hold while the target is loaded."""
        return self.total_bytes - self.context_bytes


BOUNDLESS = Room(_BOUNDLESS, 0, _BOUNDLESS)


@dataclass(frozen=True, slots=True)
class Placement:
    """How it went.

    Attributes:
        error: PyTorch's message where memory ran out, else None.
        was_loaded: False where it ran out while the target was loaded.
        peak_allocated_bytes: Most bytes in live tensors in the trial.
        peak_reserved_bytes: Most bytes held from the driver in the trial.
        retries: How often all cached blocks were given back to try again.
    """

    error: str | None
    was_loaded: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int


def place(loading: Events, trial: Events, room: Room, settings: Settings, rules: Rules) -> Placement:
    """Run what was asked for through an allocator."""
    allocator = CachingAllocator(DeviceMemory(room.total_bytes, room.context_bytes), settings, rules)
    addresses: list[int] = []
    error = _run(allocator, loading, addresses, room.capacity_bytes, room.total_bytes)
    was_loaded = error is None
    allocator.reset_peak_stats()
    retries = allocator.retries
    if was_loaded:
        error = _run(allocator, trial, addresses, room.allowed_bytes, room.total_bytes)
    return Placement(
        error,
        was_loaded,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.retries - retries,
    )


def is_plain(settings: Settings) -> bool:
    """Whether room that is not used changes nothing: the allocator does the same on all cards that are large enough."""
    return (
        settings.largest_split == NO_LIMIT
        and not settings.expandable
        and not settings.collection_threshold
        and settings.memory_fraction >= 1
    )


def _run(
    allocator: CachingAllocator, events: Events, addresses: list[int], allowed_bytes: int, total_bytes: int
) -> str | None:
    """The message where memory ran out."""
    allocator.set_memory_fraction(min(1.0, (allowed_bytes + 0.5) / total_bytes))
    malloc, free = allocator.malloc, allocator.free
    try:
        for event in events:
            if event > 0:
                addresses.append(malloc(event))
            elif event < 0:
                free(addresses[-1 - event])
            else:
                allocator.empty_cache()
    except AllocationError as error:
        return str(error)
    return None
