"""Predict the largest size of a command: replay two trials' allocations at other sizes on a simulated allocator.

A file's worker replays on PyTorch's own allocator (`oomdoctor.trial.replay`). A command has no process to replay in, so
the simulator of that allocator stands in, with the card, the settings and the version of torch that the trials had.
What is predicted is never an answer; the search runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.agent.allocator_blocks import STEP_END, unpack
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory

if TYPE_CHECKING:
    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules
    from oomdoctor.search.allocation_lines import TrialPlacement


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card, and the allocator on it.

    Attributes:
        total_bytes: Memory of the card.
        used_bytes: Bytes of it that were in use before PyTorch allocated any.
        allowed_bytes: Most bytes that the allocator may hold.
        settings: The allocator's settings.
        rules: The rules of its version.
    """

    total_bytes: int
    used_bytes: int
    allowed_bytes: int
    settings: AllocatorSettings
    rules: Rules

    def allocator(self) -> CachingAllocator:
        """Return an allocator that holds nothing."""
        allocator = CachingAllocator(DeviceMemory(self.total_bytes, self.used_bytes), self.settings, self.rules)
        allocator.heap.statistics.counts_all = False  # nobody asks for them
        if self.allowed_bytes < self.total_bytes - self.used_bytes:
            allocator.set_memory_fraction((self.allowed_bytes + 0.5) / self.total_bytes)
        return allocator


def read_allocations(text: str) -> AllocationTrace | None:
    """Return the trace that a process sent; None where it sent none, or no trace that can be.

    The command's own code could send one too, so every free has to be of an allocation that is alive.
    """
    try:
        trace = unpack(text)
    except ValueError:
        return None
    alive: set[int] = set()
    allocations = 0
    for event in trace:
        if event == STEP_END:
            continue
        if event > 0:
            alive.add(allocations)
            allocations += 1
        elif -1 - event in alive:
            alive.remove(-1 - event)
        else:
            return None
    return trace or None


def largest_simulated(placement: TrialPlacement, low: int, high: int, card: SimulatedCard) -> int:
    """Return the largest size that the simulated allocator can place.

    Args:
        placement: The allocations of a trial at any size.
        low: A size that fits, or 0.
        high: A size that does not fit, or one above the largest in question.
        card: The card.
    """
    return placement.largest(low, high, card.allowed_bytes, lambda: _SimulatedAllocator(card.allocator()))


@dataclass(slots=True)
class _SimulatedAllocator:
    """Allocates and frees on a simulated allocator."""

    allocator: CachingAllocator

    def allocate(self, size_bytes: int) -> int | None:
        try:
            return self.allocator.malloc(size_bytes)
        except AllocationError:
            return None

    def free(self, address: int) -> None:
        self.allocator.free(address)

    def retries(self) -> int:
        return self.allocator.retries

    def close(self) -> None:
        """Do nothing: nobody else has this allocator."""
