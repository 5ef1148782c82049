"""Whether the allocator of a card can place what a step asks for, and what it holds at most while it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.allocator.caching import CachingAllocator
from oomdoctor.allocator.device_memory import DeviceMemory
from oomdoctor.allocator.out_of_memory import AllocationError
from oomdoctor.allocator.rounding import NO_LIMIT
from oomdoctor.probing.fitting.lowering import Player

if TYPE_CHECKING:
    from oomdoctor.allocator.rules import Rules
    from oomdoctor.allocator.settings import Settings
    from oomdoctor.probing.fitting.lowering import Program, Run, Scripts
    from oomdoctor.results import Phase


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


@dataclass(frozen=True, slots=True)
class Placement:
    """How it went.

    Attributes:
        error: PyTorch's message where memory ran out, else None.
        was_loaded: False where it ran out while the target was loaded.
        peak_allocated_bytes: Most bytes in live tensors in the trial.
        peak_reserved_bytes: Most bytes held from the driver in the trial.
        retries: How often all cached blocks were given back to try again, loading included.
        phases: Memory by phase.
    """

    error: str | None
    was_loaded: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    phases: tuple[Phase, ...]


def place(program: Program, scripts: Scripts, room: Room, settings: Settings, rules: Rules) -> Placement:
    """Run what is asked for through an allocator."""
    allocator = CachingAllocator(DeviceMemory(room.total_bytes, room.context_bytes), settings, rules)
    allocator.heap.statistics.counts_all = False  # nobody asks for them, and they take a fifth of the time
    player = Player(allocator, scripts)
    _allow(allocator, room.capacity_bytes, room.total_bytes)
    error, was_loaded = _play(player, program.loading), False
    if error is None:
        was_loaded = True
        _allow(allocator, room.allowed_bytes, room.total_bytes)
        player.peaks.begin()
        error = _play(player, program.trial)
    peaks = player.peaks
    return Placement(error, was_loaded, peaks.allocated_bytes, peaks.reserved_bytes, allocator.retries, peaks.phases)


def is_plain(settings: Settings) -> bool:
    """Whether room that is not used changes nothing: the allocator does the same on all cards that are large enough."""
    return (
        settings.largest_split == NO_LIMIT
        and not settings.expandable
        and not settings.collection_threshold
        and settings.memory_fraction >= 1
    )


def _allow(allocator: CachingAllocator, allowed_bytes: int, total_bytes: int) -> None:
    """As `oomdoctor.probing.trial.allow`."""
    allocator.set_memory_fraction(min(1.0, (allowed_bytes + 0.5) / total_bytes))


def _play(player: Player, runs: list[Run]) -> str | None:
    """The message where memory ran out."""
    try:
        player.play(runs)
    except AllocationError as error:
        player.peaks.fail()
        return str(error)
    return None
