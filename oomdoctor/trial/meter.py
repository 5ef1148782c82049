"""Measure a trial: peaks and ends of memory by phase, as `torch.cuda` counts them. Runs in the worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from oomdoctor.results import Phase, PhaseName
from oomdoctor.trial.device import zeros_read_count
from oomdoctor.trial.replay import AllocationTrace, record_allocations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class PhaseMeter:
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
        before = zeros_read_count()
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            if name in (PhaseName.FORWARD, PhaseName.BACKWARD):  # an optimizer reads, and what it reads is its own
                self.zeros_read += zeros_read_count() - before
            self._record(iteration, name, has_ended=has_ended)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In the order in which they first began."""
        return tuple(self._phases.values())

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes in live tensors over all phases so far; what is allocated now before the first."""
        return max((phase.peak_allocated_bytes for phase in self.phases), default=torch.cuda.memory_allocated())

    def _record(self, iteration: int, name: PhaseName, *, has_ended: bool) -> None:
        before = self._phases.get((iteration, name))
        peak = max(torch.cuda.max_memory_allocated(), before.peak_allocated_bytes if before else 0)
        # What a failure's unwinding frees, autograd's threads free when they come to it: no two runs would agree.
        end = torch.cuda.memory_allocated() if has_ended else peak
        self._phases[iteration, name] = Phase(
            iteration=iteration,
            phase=name,
            peak_allocated_bytes=peak,
            end_allocated_bytes=end,
        )
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, torch.cuda.max_memory_reserved())


class TrialMeter(PhaseMeter):
    """Watches a whole trial; a profile watches it more closely.

    Attributes:
        trace: What the allocator did, once the trial has ended without an error; see `oomdoctor.trial.replay`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: AllocationTrace = []

    def whole(self) -> AbstractContextManager[None]:
        """Record what the whole trial does."""
        return record_allocations(self.trace)

    def micro_phase(self, iteration: int, _micro_step: int, name: PhaseName) -> AbstractContextManager[None]:
        """Record what one phase of one micro-step does."""
        return self.phase(iteration, name)

    def placed(self, batch: object) -> None:
        """The batch is on the device, in a forward."""

    def computed(self, loss: torch.Tensor) -> None:
        """The forward has ended with this loss, whose backward comes next."""
