"""Measure a trial: peaks and ends of memory by phase, as `torch.cuda` counts them. Runs in the worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from oomdoctor.agent.phase_meter import PhaseMeter, TorchCounts
from oomdoctor.results import Phase, PhaseName
from oomdoctor.trial.device import zeros_read_count
from oomdoctor.trial.replay import AllocationTrace, record_allocations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class WorkerMeter:
    """Meter of the worker's device by phase; it counts reads of a null GPU, too.

    Attributes:
        zeros_read: Times that a forward or backward read data back from a null GPU, which answers with zeros.
    """

    def __init__(self) -> None:
        self._meter: PhaseMeter[PhaseName, Phase] = PhaseMeter(TorchCounts(torch), Phase)
        self.zeros_read = 0

    @contextmanager
    def phase(self, iteration: int, name: PhaseName) -> Iterator[None]:
        """Record what happens inside, up to a failure where there is one."""
        self._meter.begin(iteration, name)
        before = zeros_read_count()
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            if name in (PhaseName.FORWARD, PhaseName.BACKWARD):  # an optimizer reads, and what it reads is its own
                self.zeros_read += zeros_read_count() - before
            self._meter.end(has_failed=not has_ended)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Memory of all phases that have ended, in the order in which they first began."""
        return self._meter.phases

    @property
    def peak_allocated_bytes(self) -> int:
        """Return the most bytes in live tensors over all phases so far; before the first, what is allocated now."""
        return self._meter.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes held from the driver so far."""
        return self._meter.peak_reserved_bytes


class TrialMeter(WorkerMeter):
    """Meter of a whole trial; a profile watches it more closely.

    Attributes:
        trace: Allocations and frees, once the trial has ended without an error; see `oomdoctor.trial.replay`.
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
        """Note that the batch is on the device, in a forward."""

    def computed(self, loss: torch.Tensor) -> None:
        """Note that the forward has ended with this loss, whose backward comes next."""
