"""Where the largest size probably lies, from the memory that earlier trials measured.

Samples do not share activations, so the memory of a step is a line over the micro-batch: what is there at any size plus
what each sample adds. Two sizes that fit give the line. One size gives it up to the part of a step that no sample adds
(weights cast for autocast, workspaces), for which a share of the weights is the bound. The line meets the capacity at
the ideal size; the real one is lower by what the allocator cannot pack. Holes that are left are smaller than the blocks
that are asked for, so the block that a failed size could not have is the measure of them, and memory that was reserved
without being used at a size that fits is their bound.

The answer is a centre and a spread, never a promise: the search brackets it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.results import Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Trial

# Constant part of a step as a share of the weights: none, up to a half-precision copy of all of them.
_CONSTANT_SHARE = 0.25
# Unpackable memory as a share of the block that could not be had; between 0 and 1.4 in practice.
_HOLE_SHARE = 1.0
_HOLE_ERROR = 0.4
_CEILING_MARGIN = 1.01
# Peak of a step over what the forward leaves alive, and fixed bytes over weights (gradients, two moments of Adam), where
# nothing but a forward has been seen.
_BACKWARD_FACTOR = 1.1
_FIXED_FACTOR = 4.0

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A Cauchy distribution over the largest size that fits.

    Its tails are heavy on purpose: past a size that contradicts it, the steps of the search grow geometrically instead
    of creeping, and with a large spread the median of a bracket is its middle.

    Attributes:
        centre: Most likely maximum, in samples; a fraction, since memory does not end at a whole sample.
        spread: Half of the central half of the distribution, in samples.
        ceiling: Size that cannot fit even when every byte is used and each sample adds the least that it may.
    """

    centre: float
    spread: float
    ceiling: float = math.inf

    def quantile(self, low: float, high: float, share: float) -> float:
        """Return the size below which `share` of the probability between `low` and `high` lies."""
        start = math.atan((low - self.centre) / self.spread)
        stop = math.atan((high - self.centre) / self.spread)
        size = self.centre + self.spread * math.tan(start + share * (stop - start))
        return min(max(size, low), high)


@dataclass(frozen=True, slots=True)
class Line:
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
    ideal = line.size_at(capacity_bytes)
    if ideal <= 0 or not math.isfinite(ideal):
        return None
    lost, lost_error = _unpackable(fits, ooms, ideal, capacity_bytes)
    centre = line.size_at(capacity_bytes - lost)
    slope_spread = abs(centre - line.origin) * line.slope_error
    ceiling = line.origin + (ideal - line.origin) * (1 + line.slope_error) * _CEILING_MARGIN + 1
    return Prediction(centre, math.hypot(slope_spread, lost_error / line.slope, 0.3), ceiling)


def memory_line(fits: Sequence[Trial], ooms: Sequence[Trial]) -> Line | None:
    """Return peak memory over size, or None where it does not grow or nothing was measured."""
    points = {trial.micro_batch: peak for trial in fits if (peak := step_peak(trial)) is not None}
    if len(points) > 1:
        line = _line_through(points)
    elif fits and points:
        line = _line_from_fit(fits[0], ooms)
    else:
        line = _line_from_forward(ooms)
    return line if line is not None and line.slope > 0 else None


def step_peak(trial: Trial) -> int | None:
    """Return the peak of the phases that grow with the batch; the optimizer's does not."""
    growing = [
        phase.peak_allocated_bytes
        for phase in trial.phases
        if phase.phase in (PhaseName.FORWARD, PhaseName.BACKWARD)
    ]
    return max(growing, default=trial.peak_allocated_bytes)


def _line_through(points: dict[int, int]) -> Line:
    last = max(points)
    # Neighbours differ by rounding more than by samples: the other point is the largest that is clearly smaller.
    apart = [size for size in points if size <= last * 3 // 4]
    first = max(apart) if apart else min(points)
    slope = (points[last] - points[first]) / (last - first)
    return Line(last, points[last], slope, 0.003 if apart else 0.05)


def _line_from_fit(trial: Trial, ooms: Sequence[Trial]) -> Line | None:
    peak = step_peak(trial)
    fixed = trial.fixed_bytes if trial.fixed_bytes is not None else weights(trial) or 0
    if peak is None or peak <= fixed:
        return None
    growth = peak - fixed
    constant, constant_error = _constant_part(trial, ooms)
    constant = min(constant, growth / 2)
    slope = (growth - constant) / trial.micro_batch
    error = min(constant_error, growth / 2) / (growth - constant)
    return Line(trial.micro_batch, peak, slope, math.hypot(error, 0.003))


def _constant_part(trial: Trial, ooms: Sequence[Trial]) -> tuple[float, float]:
    """Return the part of a step that no sample adds, and its uncertainty, in bytes.

    A size that ran out after its first forward has left a second point on the forward's line; its intercept over the
    weights is the constant part.
    """
    base = weights(trial) or 0
    ours = forward_end(trial)
    for other in ooms:
        theirs = forward_end(other)
        if ours is not None and theirs is not None and other.micro_batch != trial.micro_batch:
            slope = (theirs - ours) / (other.micro_batch - trial.micro_batch)
            return max(0.0, ours - slope * trial.micro_batch - base), 0.02 * base
    return _CONSTANT_SHARE * base, _CONSTANT_SHARE * base


def _line_from_forward(ooms: Sequence[Trial]) -> Line | None:
    """Return a rough line from the smallest failed size that came through its first forward."""
    seen = [trial for trial in ooms if forward_end(trial) is not None]
    if not seen:
        return None
    trial = min(seen, key=lambda trial: trial.micro_batch)
    base, end = weights(trial) or 0, forward_end(trial) or 0
    slope = _BACKWARD_FACTOR * (end - base) / trial.micro_batch
    return Line(0, _FIXED_FACTOR * base, slope, 0.1)


def forward_end(trial: Trial) -> int | None:
    """Return bytes alive after the first forward; None where the trial failed before its end."""
    completed = trial.phases if trial.outcome is Outcome.FITS else trial.phases[:-1]
    for phase in completed:
        if (phase.iteration, phase.phase) == (1, PhaseName.FORWARD):
            return phase.end_allocated_bytes
    return None


def weights(trial: Trial) -> int | None:
    """Return bytes alive once the model was loaded."""
    return next((phase.end_allocated_bytes for phase in trial.phases if phase.phase is PhaseName.LOAD), None)


def _unpackable(
    fits: Sequence[Trial], ooms: Sequence[Trial], ideal: float, capacity_bytes: int
) -> tuple[float, float]:
    """Return bytes of the capacity that the allocator cannot use near the maximum, and their uncertainty."""
    bounds = []
    if ooms:
        nearest = min(ooms, key=lambda trial: trial.micro_batch)
        tried = tried_bytes(nearest)
        if tried is not None:
            bounds.append(_HOLE_SHARE * tried * min(1.0, ideal / nearest.micro_batch))
    if fits:
        bounds.extend(_unused_share(fits[-1]) * capacity_bytes for _ in (1,))
    lost = min(bounds, default=0.0)
    if not ooms:
        lost /= 2
    return lost, _HOLE_ERROR * lost


def _unused_share(trial: Trial) -> float:
    """Return reserved memory that was not in use at the peak, as a share of what was."""
    if not trial.peak_reserved_bytes or not trial.peak_allocated_bytes:
        return 0.0
    return max(0.0, 1 - trial.peak_allocated_bytes / trial.peak_reserved_bytes)


def tried_bytes(trial: Trial) -> float | None:
    """Return the size of the block that could not be had, as PyTorch's message names it."""
    match = _TRIED.search(trial.error or "")
    return float(match[1]) * _UNITS[match[2]] if match else None
