"""Predict where the largest size probably lies, from the memory that earlier trials measured.

Samples do not share activations, so the memory of a step is a line over the micro-batch: what is there at any size plus
what each sample adds. Two sizes that fit give the line; one gives it up to the part of a step that no sample adds
(weights cast for autocast, workspaces), for which a share of the weights is the measure. The line meets the capacity at
the ideal size. The real one is lower by what the allocator cannot pack, and a size that ran out says how much that is:

- holes that are left are no larger than the blocks that are asked for, so the block it could not have bounds them, as
  does the memory that a fitting size reserved without using it;
- where it died at the peak of the step, what it had, what it asked for and what lay idle between blocks is the memory
  that its size needs, and need beyond the fixed part is proportional to size.

The answer is a centre and a spread, never a promise: the search brackets it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from oomdoctor.results import Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Trial


@dataclass(frozen=True, slots=True)
class Guess:
    """Prediction of an answer: the largest size that fits, and the largest that leaves the headroom free."""

    maximum: int
    recommended: int


class WarmStart(Protocol):
    """Guesses what a search will find, so that it can begin there."""

    def guess(self, capacity_bytes: int) -> Guess | None:
        """Guess the answer with so much memory; None where that cannot be told."""


# Part of a step that no sample adds, as a share of the weights: measured between 0 and 1. The second error is that of a
# part which a failure in backward has let us measure.
_CONSTANT_SHARE, _CONSTANT_ERROR, _CONSTANT_MEASURED_ERROR = 0.4, 0.6, 0.1
# Relative error of a slope through two sizes that are apart, and through neighbours, where rounding shows.
_SLOPE_ERROR, _NEIGHBOURS_SLOPE_ERROR = 0.002, 0.05
# Error of the unpackable part, relative to it: read off a fitting size near the maximum and far from it, and off the
# block that could not be had.
_NEAR_ERROR, _FAR_ERROR, _HOLES_ERROR = 0.02, 0.4, 0.35
# Error of a need that was read off a failure, relative to the distance from it.
_NEED_ERROR = 0.15
# Blocks are rounded up, and memory does not end at a whole sample.
_ROUNDING = 0.4
# A failure tells the need of its size where its allocations came this near to the predicted peak, this much of what it
# asked for lay idle between blocks, and it asked for this share of the capacity. Else it died on the way there, or the
# idle memory is chance.
_AT_PEAK, _IDLE_SHARE, _LARGE_BLOCK = 0.985, 0.5, 0.04
# What is reserved and not used at a size that fits without pressure is had back under pressure, up to about this share;
# above it, it is fragmentation.
_REGAINED_SHARE = 0.1
_CEILING_MARGIN = 1.01

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AMOUNT = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_TRIED = re.compile(rf"Tried to allocate {_AMOUNT}")
_ALLOCATED = re.compile(rf"allocated memory {_AMOUNT} is allocated by PyTorch")
_IDLE = re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A Cauchy distribution over the largest size that fits.

    Its tails are heavy on purpose: past a size that contradicts it, the steps of the search grow geometrically instead
    of creeping, and with a large spread the median of a bracket is its middle.

    Attributes:
        centre: Most likely maximum, in samples; a fraction, since memory does not end at a whole sample.
        spread: Half of the central half of the distribution, in samples.
        ceiling: Size that cannot fit even if every byte is used and each sample adds the least that it may.
    """

    centre: float
    spread: float
    ceiling: float

    def quantile(self, low: float, high: float, share: float) -> float:
        """Return the size below which `share` of the probability between `low` and `high` lies."""
        start = math.atan((low - self.centre) / self.spread)
        stop = math.atan((high - self.centre) / self.spread)
        size = self.centre + self.spread * math.tan(start + share * (stop - start))
        return min(max(size, low), high)


@dataclass(frozen=True, slots=True)
class PeakLine:
    """Peak memory of a step over the micro-batch.

    Attributes:
        origin: A micro-batch on the line.
        origin_bytes: Peak memory there.
        slope: Bytes that each sample adds.
        slope_error: Relative uncertainty of the slope.
    """

    origin: int
    origin_bytes: float
    slope: float
    slope_error: float

    def size_at(self, peak_bytes: float) -> float:
        """Return the micro-batch whose step peaks at `peak_bytes`."""
        return self.origin + (peak_bytes - self.origin_bytes) / self.slope

    def peak_at(self, size: float) -> float:
        """Return the peak of a step at micro-batch `size`."""
        return self.origin_bytes + (size - self.origin) * self.slope


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory at the moment at which it ran out, in bytes, as PyTorch's message has it.

    Attributes:
        tried: The block that could not be had.
        allocated: In live tensors.
        idle: Between them, where nothing could be given back.
    """

    tried: float
    allocated: float
    idle: float


def predict(trials: Sequence[Trial], capacity_bytes: int) -> Prediction | None:
    """Predict the largest size that fits.

    Args:
        trials: What is known, in any order.
        capacity_bytes: Bytes that PyTorch may take.

    Returns:
        The prediction, or None where the trials' peaks say nothing about growth.
    """
    fits = sorted((trial for trial in trials if trial.outcome is Outcome.FITS), key=lambda trial: trial.micro_batch)
    ooms = [trial for trial in trials if trial.outcome is Outcome.OOM]
    line = memory_line(fits, ooms)
    if line is None:
        return None
    nearest = min(ooms, key=lambda trial: trial.micro_batch, default=None)
    shortage = read_shortage(nearest) if nearest else None
    ideal = line.size_at(capacity_bytes)
    if ideal <= 0:
        return None
    fragmented = max(0.0, unused_share(fits) - _REGAINED_SHARE) / 2
    best = line.size_at(capacity_bytes * (1 - fragmented))
    ceiling = line.origin + (best - line.origin) * (1 + line.slope_error) * _CEILING_MARGIN + 1
    if nearest and shortage and _died_at_peak(nearest, shortage, line):
        fixed = nearest.fixed_bytes or 0
        growing = shortage.allocated + shortage.tried + shortage.idle - fixed
        centre = nearest.micro_batch * (capacity_bytes - fixed) / growing if growing > 0 else nearest.micro_batch
        return Prediction(centre, _NEED_ERROR * abs(nearest.micro_batch - centre) + _ROUNDING, ceiling)
    lost, error = _unpackable(fits, nearest, shortage, ideal)
    centre = line.size_at(capacity_bytes * (1 - lost))
    slope_spread = abs(centre - line.origin) * line.slope_error
    return Prediction(centre, math.hypot(slope_spread, error * ideal) + _ROUNDING, ceiling)


def memory_line(fits: Sequence[Trial], ooms: Sequence[Trial] = ()) -> PeakLine | None:
    """Return peak memory over size from sizes that fit, smallest first; None where it was not seen to grow."""
    points = {trial.micro_batch: peak for trial in fits if (peak := step_peak(trial)) is not None}
    if not points:
        return None
    line = _line_through(points) if len(points) > 1 else _line_from_one(fits[-1], ooms)
    return line if line is not None and line.slope > 0 else None


def step_peak(trial: Trial) -> int | None:
    """Return the peak of the phases that grow with the batch; the optimizer's does not."""
    growing = [
        phase.peak_allocated_bytes for phase in trial.phases if phase.phase in (PhaseName.FORWARD, PhaseName.BACKWARD)
    ]
    return max(growing, default=trial.peak_allocated_bytes)


def read_shortage(trial: Trial) -> Shortage | None:
    """Read what PyTorch's message says; None where the error is not PyTorch's own."""
    found = [pattern.search(trial.error or "") for pattern in (_TRIED, _ALLOCATED, _IDLE)]
    amounts = [float(match[1]) * _UNITS[match[2]] for match in found if match]
    return Shortage(*amounts) if len(amounts) == len(found) else None


def _line_through(points: dict[int, int]) -> PeakLine:
    last = max(points)
    apart = [size for size in points if size <= last * 3 // 4]
    first = max(apart) if apart else min(points)
    slope = (points[last] - points[first]) / (last - first)
    return PeakLine(last, points[last], slope, _SLOPE_ERROR if apart else _NEIGHBOURS_SLOPE_ERROR)


def _line_from_one(trial: Trial, ooms: Sequence[Trial]) -> PeakLine | None:
    peak = step_peak(trial)
    fixed = trial.fixed_bytes or 0
    if peak is None or peak <= fixed:
        return None
    growth, weights = peak - fixed, _weights(trial)
    constant, error = _CONSTANT_SHARE * weights, _CONSTANT_ERROR * weights
    for failed in ooms:
        measured = _measured_constant(trial, failed)
        if measured is not None and -0.05 * weights <= measured <= 1.2 * weights:
            constant, error = measured, _CONSTANT_MEASURED_ERROR * weights
    constant = min(constant, growth / 2)
    slope = (growth - constant) / trial.micro_batch
    return PeakLine(trial.micro_batch, peak, slope, min(error, growth / 2) / (growth - constant) + _SLOPE_ERROR)


def _measured_constant(fit: Trial, failed: Trial) -> float | None:
    """Return the part of a forward that no sample adds, from a size that ran out in its first backward.

    Its first forward was complete: with the one that fits, that makes two points on the line of activations.
    """
    ours, theirs = _activations(fit, 2), _activations(failed, 1)
    last = failed.phases[-1] if failed.phases else None
    if ours is None or theirs is None or last is None or (last.iteration, last.phase) != (1, PhaseName.BACKWARD):
        return None
    slope = (theirs - ours) / (failed.micro_batch - fit.micro_batch)
    return ours - slope * fit.micro_batch


def _activations(trial: Trial, iteration: int) -> int | None:
    """Return bytes that a forward leaves alive for its backward."""
    for phase in trial.phases:
        if (phase.iteration, phase.phase) == (iteration, PhaseName.FORWARD) and trial.fixed_bytes is not None:
            return phase.end_allocated_bytes - trial.fixed_bytes
    return None


def _weights(trial: Trial) -> float:
    """Return about how many bytes the trained weights have: their gradients, which a step gives back at its end."""
    ends = [phase.end_allocated_bytes for phase in trial.phases if phase.phase is PhaseName.OPTIMIZER]
    fixed = trial.fixed_bytes or 0
    gradients = fixed - ends[-1] if ends else 0
    return gradients if gradients > 0 else fixed / 4


def _died_at_peak(trial: Trial, shortage: Shortage, line: PeakLine) -> bool:
    reached = (trial.peak_allocated_bytes or 0) + shortage.tried
    return (
        reached >= _AT_PEAK * line.peak_at(trial.micro_batch)
        and shortage.idle >= _IDLE_SHARE * shortage.tried
        and shortage.tried >= _LARGE_BLOCK * trial.allowed_bytes
    )


def _unpackable(
    fits: Sequence[Trial], failed: Trial | None, shortage: Shortage | None, ideal: float
) -> tuple[float, float]:
    """Return the share of the capacity that the allocator cannot use near the maximum, and its error."""
    clean = [trial for trial in fits if not trial.is_tight]
    unused = unused_share(fits)
    distance = max(0.0, 1 - clean[-1].micro_batch / ideal) if clean else 1.0
    error = (_NEAR_ERROR + _FAR_ERROR * distance) * unused
    if failed is None or shortage is None:
        return unused / 2, unused / 2
    holes = shortage.tried * min(1.0, ideal / failed.micro_batch) / failed.allowed_bytes
    return (unused, error) if clean and unused < holes else (holes, _HOLES_ERROR * holes)


def unused_share(fits: Sequence[Trial]) -> float:
    """Return the share of reserved memory that was not in use, at the largest size that ran without pressure."""
    for trial in reversed(fits):
        if not trial.is_tight and trial.peak_reserved_bytes and trial.peak_allocated_bytes:
            return max(0.0, 1 - trial.peak_allocated_bytes / trial.peak_reserved_bytes)
    return 0.0
