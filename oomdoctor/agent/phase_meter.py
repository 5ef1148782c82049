"""Phase meter: peaks and ends of memory by iteration and phase, for every kind of trial.

A worker measures with `torch.cuda` and a fit with a simulated allocator, whose peaks they reset at each phase. The
agent of a command reads the allocator's history, since the peaks are the command's own. What they share is here: which
figures a phase has, and how micro-steps and failures count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


PHASES = ("load", "forward", "backward", "optimizer", "evaluation")
LOAD, FORWARD, BACKWARD, OPTIMIZER, EVALUATION = PHASES

Name = TypeVar("Name", bound=str)
Record = TypeVar("Record")


@dataclass(frozen=True)
class MeteredPhase:
    """Memory of one phase of one iteration; where an iteration has several micro-steps, over all of them.

    Attributes:
        iteration: From 1; 0 for loading the model.
        phase: One of `PHASES`.
        peak_allocated_bytes: Most bytes in live tensors during the phase.
        end_allocated_bytes: Bytes in live tensors when the phase last ended; the peak of a phase that failed.
    """

    iteration: int
    phase: str
    peak_allocated_bytes: int
    end_allocated_bytes: int


class PhaseTable(Generic[Name, Record]):
    """Figures by iteration and phase, in the order in which they first began; micro-steps share theirs.

    Args:
        make: Makes the record of a phase from its iteration, its name, its peak and its end, both in bytes.
    """

    def __init__(self, make: Callable[[int, Name, int, int], Record]) -> None:
        self._make = make
        self._figures: dict[tuple[int, Name], tuple[int, int]] = {}

    def add(self, iteration: int, phase: Name, peak_bytes: int, end_bytes: int) -> None:
        """Add a phase that has ended, or one more micro-step of it."""
        before, _ = self._figures.get((iteration, phase), (0, 0))
        self._figures[iteration, phase] = max(before, peak_bytes), end_bytes

    def fail(self, iteration: int, phase: Name) -> None:
        """Let a phase end at its peak.

        What a failure's unwinding frees, autograd's threads free when they come to it: no two runs would agree.
        """
        if (iteration, phase) in self._figures:
            peak, _ = self._figures[iteration, phase]
            self._figures[iteration, phase] = peak, peak

    def put_last(self, iteration: int, phase: Name) -> None:
        """Put a phase behind all others, where it began again and nothing came after it."""
        self._figures[iteration, phase] = self._figures.pop((iteration, phase))

    def records(self) -> tuple[Record, ...]:
        """Return one record for each iteration and phase."""
        return tuple(self._make(*key, *figures) for key, figures in self._figures.items())

    def peak_bytes(self) -> int | None:
        """Return the highest peak; None before the first phase has ended."""
        return max((peak for peak, _ in self._figures.values()), default=None)


class Counts(NamedTuple):
    """Figures that an allocator counts, in bytes: in live tensors and held from the driver, now and at most."""

    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int


class PhaseMeter(Generic[Name, Record]):
    """Meter of an allocator whose peaks are ours to reset: each phase is measured from its begin to its end.

    Args:
        counts: Returns the allocator's figures.
        reset_peaks: Begins both peaks anew, at the figures of now.
        make: As for `PhaseTable`.

    Attributes:
        peak_reserved_bytes: Most bytes held from the driver until the last phase ended.
    """

    def __init__(
        self,
        counts: Callable[[], Counts],
        reset_peaks: Callable[[], None],
        make: Callable[[int, Name, int, int], Record],
    ) -> None:
        self._counts = counts
        self._reset_peaks = reset_peaks
        self._table = PhaseTable(make)
        self._open: tuple[int, Name] | None = None
        self.peak_reserved_bytes = counts().reserved_bytes

    @property
    def phases(self) -> tuple[Record, ...]:
        """The records of all phases that have ended, in the order in which they first began, one that failed last."""
        return self._table.records()

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes in live tensors over all phases so far; before the first has ended, those of now."""
        peak = self._table.peak_bytes()
        return self._counts().allocated_bytes if peak is None else peak

    def begin(self, iteration: int, phase: Name) -> None:
        """Begin a phase."""
        self._open = iteration, phase
        self._reset_peaks()

    def end(self, *, has_failed: bool = False) -> None:
        """End the phase that is open, if there is one."""
        if self._open is None:
            return
        counts = self._counts()
        self._table.add(*self._open, counts.peak_allocated_bytes, counts.allocated_bytes)
        if has_failed:
            self._table.fail(*self._open)
            self._table.put_last(*self._open)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, counts.peak_reserved_bytes)
        self._open = None
