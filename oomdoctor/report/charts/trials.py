"""Peak memory over the micro-batch, one mark a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.charts.scales import SCALE, Scale, joined, round_counts, sizes
from oomdoctor.report.charts.timeline import Level, grid
from oomdoctor.report.plain_text import percent
from oomdoctor.results import Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import ProbeResult, Trial


_HIGHEST_CAPACITY: Final = 12
"""A capacity beyond so many times the highest peak is said and not drawn."""

_MOST_MARKS: Final = 400
_CROWDED_PART: Final = 0.1  # where most sizes are in so small a part of the range, a logarithmic one tells them apart
_ROOM: Final = 0.08  # beyond the largest size
_RIGHT_HALF: Final = SCALE / 2


@dataclass(frozen=True, slots=True)
class TrialMark:
    """One trial.

    Attributes:
        x: Its size, in units of the plot.
        y: Its peak, as a distance from the upper edge.
        outcome: How it ended.
        is_lowered: Whether it ran with less than the capacity.
        title: The same in words.
    """

    x: float
    y: float
    outcome: Outcome
    is_lowered: bool
    title: str


@dataclass(frozen=True, slots=True)
class Flag:
    """A size worth naming, above the plot.

    Attributes:
        x: Where it is, in units of the plot.
        is_right: Whether it is in the right half, so that its label has room on the left.
        label: What it is.
    """

    x: float
    is_right: bool
    label: str


@dataclass(frozen=True, slots=True)
class TrialsChart:
    """Everything that the template draws.

    Attributes:
        marks: The trials.
        line: Points of the line through those that fit.
        grid: Levels of round sizes.
        capacity: What PyTorch may take; None where it is far above the plot.
        spared: The capacity less the headroom; None where there is none.
        beyond: What is said of a capacity that is far above the plot; else None.
        counts: Sizes worth a label along the lower edge: where, and the size.
        flags: The maximum and the recommended size.
        is_log: Whether the sizes are on a logarithmic scale.
        left_out: Trials that are not drawn: without a figure, or too many.
    """

    marks: tuple[TrialMark, ...]
    line: str
    grid: tuple[Level, ...]
    capacity: Level | None
    spared: Level | None
    beyond: str | None
    counts: tuple[tuple[float, int], ...]
    flags: tuple[Flag, ...]
    is_log: bool
    left_out: int


def chart(result: ProbeResult) -> TrialsChart | None:
    """Return the chart of a probe; None where no trial has a figure."""
    measured = [trial for trial in result.trials if trial.peak_reserved_bytes is not None]
    if not measured:
        return None
    drawn = _thinned(measured, result)
    across = _across([trial.micro_batch for trial in drawn])
    highest = max(*map(_peak, drawn), 1)
    capacity = result.capacity_bytes if result.capacity_bytes <= highest * _HIGHEST_CAPACITY else None
    spared = None if capacity is None or not result.headroom else int(capacity * (1 - result.headroom))
    up = sizes(max(highest, capacity or 0))
    return TrialsChart(
        marks=tuple(_mark(trial, result, across, up) for trial in drawn),
        line=_line(drawn, across, up),
        grid=grid(up, capacity, spared),
        capacity=None if capacity is None else Level(up.below_top(capacity), f"capacity {format_size(capacity)}"),
        spared=None if spared is None else Level(up.below_top(spared), f"capacity less {percent(result.headroom)}"),
        beyond=f"capacity {format_size(result.capacity_bytes)}, far above" if capacity is None else None,
        counts=tuple((across.at(count), count) for count in round_counts(across)),
        flags=tuple(_flags(result, across)),
        is_log=across.is_log,
        left_out=len(result.trials) - len(drawn),
    )


def _peak(trial: Trial) -> int:
    return trial.peak_reserved_bytes or 0


def _thinned(trials: Sequence[Trial], result: ProbeResult) -> list[Trial]:
    """Return at most so many trials, evenly chosen, and those of the answer in any case."""
    if len(trials) <= _MOST_MARKS:
        return list(trials)
    every = -(-len(trials) // _MOST_MARKS)
    named = {result.micro_batch.maximum, result.micro_batch.maximum + 1, result.micro_batch.recommended}
    chosen = [trial for index, trial in enumerate(trials) if index % every == 0 or trial.micro_batch in named]
    return chosen[: 2 * _MOST_MARKS]


def _across(tried: Sequence[int]) -> Scale:
    """Return the scale of micro-batches: linear, or logarithmic where that would crowd most at its beginning."""
    highest, known = max(*tried, 1), sorted(set(tried))
    crowded = sum(size < highest * _CROWDED_PART for size in known) > len(known) / 2
    if crowded and known[0] > 0:
        return Scale(max(known[0] / 1.3, 0.8), highest * 1.3, is_log=True)
    return Scale(0, highest + max(1, highest * _ROOM))


def _mark(trial: Trial, result: ProbeResult, across: Scale, up: Scale) -> TrialMark:
    reached = f"{format_size(_peak(trial))} reserved at the peak"
    if trial.outcome is not Outcome.FITS:
        reached += ", up to the failure"
    return TrialMark(
        x=across.at(trial.micro_batch),
        y=up.below_top(_peak(trial)),
        outcome=trial.outcome,
        is_lowered=trial.allowed_bytes < result.capacity_bytes,
        title=f"micro-batch {trial.micro_batch}: {reached}",
    )


def _line(trials: Sequence[Trial], across: Scale, up: Scale) -> str:
    """Return the line through the highest peak of each size that fits."""
    peaks: dict[int, int] = {}
    for trial in trials:
        if trial.outcome is Outcome.FITS:
            peaks[trial.micro_batch] = max(peaks.get(trial.micro_batch, 0), _peak(trial))
    corners = [(across.at(size), up.below_top(peaks[size])) for size in sorted(peaks)]
    return joined(corners) if len(corners) > 1 else ""


def _flags(result: ProbeResult, across: Scale) -> list[Flag]:
    answer = result.micro_batch
    named = [("maximum", answer.maximum), ("recommended", answer.recommended)]
    return [Flag(x, x > _RIGHT_HALF, f"{word} {size}") for word, size in named if size for x in (across.at(size),)]
