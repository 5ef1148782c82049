"""Peaks and ends of memory by phase, as `torch.cuda` counts them. Runs in the worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from oomdoctor.devices.null_gpu.control import reads
from oomdoctor.results import Phase, PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterator


class PhaseRecorder:
    """Collects one `Phase` for each (iteration, phase); the micro-steps of an iteration share one.

    Attributes:
        peak_reserved_bytes: Most bytes held from the driver so far.
        zeros_read: Times that a forward or backward read data back from a null GPU, which answers with zeros.
    """

    def __init__(self) -> None:
        self._phases: dict[tuple[int, PhaseName], Phase] = {}
        self.peak_reserved_bytes = torch.cuda.memory_reserved()
        self.zeros_read = 0

    @contextmanager
    def phase(self, iteration: int, name: PhaseName) -> Iterator[None]:
        """Record what happens inside, up to a failure where there is one."""
        torch.cuda.reset_peak_memory_stats()
        before = reads()
        try:
            yield
        finally:
            if name in (PhaseName.FORWARD, PhaseName.BACKWARD):  # an optimizer reads, and what it reads is its own
                self.zeros_read += reads() - before
            self._record(iteration, name)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In the order in which they first began."""
        return tuple(self._phases.values())

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes in live tensors over all phases so far; what is allocated now before the first."""
        return max((phase.peak_allocated_bytes for phase in self.phases), default=torch.cuda.memory_allocated())

    def _record(self, iteration: int, name: PhaseName) -> None:
        before = self._phases.get((iteration, name))
        peak = torch.cuda.max_memory_allocated()
        self._phases[iteration, name] = Phase(
            iteration=iteration,
            phase=name,
            peak_allocated_bytes=peak if before is None else max(peak, before.peak_allocated_bytes),
            end_allocated_bytes=torch.cuda.memory_allocated(),
        )
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, torch.cuda.max_memory_reserved())
