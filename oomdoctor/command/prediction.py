"""Predict the largest size of a command: replay two trials' allocations at other sizes on a simulated allocator.

A file's worker replays on PyTorch's own allocator (`oomdoctor.trial.replay`). A command has no process to replay in, so
the simulator of that allocator stands in, with the card, the settings and the version of torch that the trials had.
What is predicted is never an answer; the search runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.agent.allocator_blocks import unpack
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory
from oomdoctor.search.allocation_lines import allocation_lines, largest_placeable, live_peak

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules
    from oomdoctor.search.allocation_lines import AllocationLine


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
        if event >= 0:
            alive.add(allocations)
            allocations += 1
        elif -1 - event in alive:
            alive.remove(-1 - event)
        else:
            return None
    return trace or None


def largest_simulated(
    traces: Mapping[int, AllocationTrace], low: int, high: int, card: SimulatedCard, *, retries: bool
) -> int | None:
    """Return the largest size that the simulated allocator can place.

    Args:
        traces: Trace of all allocations of a process by micro-batch, of trials that fit.
        low: A size that fits, or 0.
        high: A size that does not fit, or one above the largest in question.
        card: The card.
        retries: Whether the allocator may give back its cache and try again, as it does at the edge.

    Returns:
        None where no two trials did the same at their two sizes.
    """
    found = allocation_lines(traces)
    if found is None:
        return None
    steps = found.lines
    return largest_placeable(
        low,
        high,
        is_live_within=lambda size: live_peak(steps, size) <= card.allowed_bytes,
        can_place=lambda size: _can_place(steps, size, card.allocator(), retries=retries),
    )


def _can_place(
    steps: Sequence[AllocationLine], micro_batch: int, allocator: CachingAllocator, *, retries: bool
) -> bool:
    addresses: list[int] = []
    try:
        for step in steps:
            if step.freed is None:
                addresses.append(allocator.malloc(step.size_at(micro_batch)))
            else:
                allocator.free(addresses[step.freed])
    except AllocationError:
        return False
    return retries or allocator.retries == 0
