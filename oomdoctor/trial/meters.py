"""Meters of what a trial allocates on the worker's device, by phase. Runs in the worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from oomdoctor.agent import unknown_reads
from oomdoctor.agent.phase_meter import Counts, PhaseMeter
from oomdoctor.results import Phase, PhaseName
from oomdoctor.trial.device import zeros_read_count
from oomdoctor.trial.replay import event_count, record_allocations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from oomdoctor.agent.allocator_blocks import AllocationTrace

_WHEN = ("current", "peak")


def _counts() -> Counts:
    figures = torch.cuda.memory_stats_as_nested_dict()  # not flattened: 200 µs less, a tenth of a small trial
    empty: dict[str, dict[str, int]] = {"all": {}}
    return Counts(
        *(
            figures.get(f"{name}_bytes", empty)["all"].get(what, 0)
            for name in ("allocated", "reserved")
            for what in _WHEN
        )
    )


class WorkerMeter:
    """Meter of the worker's device by phase; it counts reads of a null GPU, too.

    Attributes:
        zeros_read: Times that a forward or backward read data back from a null GPU, which answers with zeros.
    """

    def __init__(self) -> None:
        self._meter: PhaseMeter[PhaseName, Phase] = PhaseMeter(_counts, torch.cuda.reset_peak_memory_stats, Phase)
        self.zeros_read = 0

    @contextmanager
    def phase(self, iteration: int, name: PhaseName) -> Iterator[None]:
        """Record what happens inside, up to a failure where there is one."""
        self._meter.begin(iteration, name)
        mark, before = unknown_reads.mark(), zeros_read_count()
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            # What an optimizer of PyTorch reads is its own; what the program's own optimizer reads has a line.
            if name.calls_model or unknown_reads.reads(mark):
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
        trace: Allocations and frees, once the trial has ended without an error; see `oomdoctor.agent.allocator_blocks`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: AllocationTrace = []
        self._ends: list[int] = []

    def whole(self) -> AbstractContextManager[None]:
        """Record what the whole trial does."""
        return record_allocations(self.trace, self._ends)

    def step_ended(self) -> None:
        """Note that an optimizer step has ended."""
        self._ends.append(event_count())

    def micro_phase(self, iteration: int, _micro_step: int, name: PhaseName) -> AbstractContextManager[None]:
        """Record what one phase of one micro-step does."""
        return self.phase(iteration, name)

    def placed(self, batch: object) -> None:
        """Note that the batch is on the device, in a forward."""

    def computed(self, loss: torch.Tensor) -> None:
        """Note that the forward has ended with this loss, whose backward comes next."""
