"""What the phases of a trial hold on an allocator, as `oomdoctor.probing.recorder` counts it on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.results import Phase

if TYPE_CHECKING:
    from oomdoctor.allocator.caching import CachingAllocator
    from oomdoctor.tracing.journal import Mark


class PhasePeaks:
    """Collects one `Phase` for each iteration and phase.

    Args:
        allocator: The allocator.

    Attributes:
        reserved_bytes: Most bytes held from the driver in any phase so far, or before the first.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._phases: dict[Any, Phase] = {}
        self._open: Any = None
        self.reserved_bytes = 0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In the order in which they first began."""
        return tuple(self._phases.values())

    @property
    def allocated_bytes(self) -> int:
        """Most bytes in live tensors over all phases so far; what is allocated now before the first."""
        return max((phase.peak_allocated_bytes for phase in self.phases), default=self._allocator.allocated_bytes)

    def begin(self) -> None:
        """The trial begins."""
        self.reserved_bytes = self._allocator.reserved_bytes

    def note(self, mark: Mark) -> None:
        """A phase begins or ends."""
        if mark.is_end:
            self._record(end_bytes=self._allocator.allocated_bytes)
        else:
            self._open = mark.phase
            self._allocator.reset_peak_stats()

    def fail(self) -> None:
        """The phase that is open ran out of memory."""
        if self._open is not None:
            self._record(end_bytes=None)

    def _record(self, *, end_bytes: int | None) -> None:
        iteration, name = self._open
        before = self._phases.get(self._open)
        peak = max(self._allocator.peak_allocated_bytes, before.peak_allocated_bytes if before else 0)
        self._phases[self._open] = Phase(
            iteration=iteration,
            phase=name,
            peak_allocated_bytes=peak,
            end_allocated_bytes=peak if end_bytes is None else end_bytes,
        )
        self._open = None
        self.reserved_bytes = max(self.reserved_bytes, self._allocator.peak_reserved_bytes)
