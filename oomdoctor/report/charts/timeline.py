"""Memory over time by category, with the phases of the step above it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.charts import scales
from oomdoctor.report.charts.scales import (
    SCALE,
    Words,
    event_position,
    inside,
    longest_fitting,
    round_sizes,
    size_label,
    sizes,
)
from oomdoctor.report.plain_text import CATEGORY_WORDS
from oomdoctor.results import PhaseName
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.report.charts.scales import Area, AreaLabel, Scale
    from oomdoctor.results import PhaseMemory, StepMemory, TimelinePoint


_MOST_BANDS: Final = 60
"""Bands of one row; more are finer than a line."""

_NAMES: Final[Mapping[PhaseName, tuple[str, ...]]] = MappingProxyType(
    {
        PhaseName.LOAD: ("load",),
        PhaseName.FORWARD: ("forward", "fwd"),
        PhaseName.BACKWARD: ("backward", "bwd"),
        PhaseName.OPTIMIZER: ("optimizer", "opt"),
        PhaseName.PREFILL: ("prefill",),
        PhaseName.DECODE: ("decode", "dec"),
        PhaseName.EVALUATION: ("evaluation", "eval"),
    }
)


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of a timeline.

    Attributes:
        left: Where it begins, in units of the plot.
        width: How long it is, in the same units.
        words: What it is, as far as there is room.
        phase: The phase, for its shade; None for an iteration.
    """

    left: float
    width: float
    words: Words
    phase: PhaseName | None


def iterations(memory: StepMemory) -> tuple[Band, ...]:
    """Return one band an iteration."""
    groups = groupby(_drawn(memory), key=lambda phase: phase.iteration)
    return tuple(
        _band(memory, list(phases), (f"iteration {number}", f"it. {number}", str(number)), None)
        for number, phases in groups
    )[:_MOST_BANDS]


def phases(memory: StepMemory) -> tuple[Band, ...]:
    """Return one band a phase of a micro-step."""
    return tuple(_band(memory, [phase], _NAMES[phase.phase], phase.phase) for phase in _drawn(memory)[:_MOST_BANDS])


def _drawn(memory: StepMemory) -> list[PhaseMemory]:
    """Return phases in which something was allocated or freed."""
    return [phase for phase in memory.phases if memory.timeline and phase.last_event > phase.first_event]


def _band(memory: StepMemory, spanned: Sequence[PhaseMemory], names: Sequence[str], phase: PhaseName | None) -> Band:
    left = event_position(memory.timeline, spanned[0].first_event)
    right = event_position(memory.timeline, spanned[-1].last_event)
    width = round(max(0.0, right - left), 1)
    return Band(left, width, longest_fitting(names, width), phase)


HIGHEST_CAPACITY: Final = 3
"""A capacity beyond so many times what was used would flatten everything else."""

_ROOM_FOR_LABEL: Final = 0.06
_PLACE_OF_BEYOND: Final = 0.965  # where words about a capacity that is not drawn stand
_RIGHT_HALF: Final = SCALE / 2


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line and its label; `y` is in units of the plot."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that the template draws.

    Attributes:
        areas: Stacked from the bottom.
        labels: Names of the areas that have room for theirs.
        reserved: Points of the line of reserved memory.
        grid: Levels of round sizes.
        capacity: The device's memory; None where it is not known or far above the plot.
        beyond: What is said of a capacity that is far above the plot; else None.
        peak_x: Where the peak is, in units of the plot.
        peak_y: The same.
        peak_label: How much was allocated there.
        peak_note: What to say behind it where there is room.
        is_peak_right: Whether the peak is in the right half, so that its label has room on the left.
        first: What the left end is.
        last: What the right end is.
        strips: Rows of bands below the plot.
    """

    areas: tuple[Area, ...]
    labels: tuple[AreaLabel, ...]
    reserved: str
    grid: tuple[Level, ...]
    capacity: Level | None
    beyond: str | None
    peak_x: float
    peak_y: float
    peak_label: str
    peak_note: str
    is_peak_right: bool
    first: str
    last: str
    strips: tuple[tuple[Band, ...], ...]


def timeline(
    points: Sequence[TimelinePoint],
    capacity_bytes: int | None,
    *,
    peak_note: str = "",
    strips: tuple[tuple[Band, ...], ...] = (),
) -> Timeline:
    """Return the chart of a timeline with at least one point.

    Args:
        points: Memory after each of some events.
        capacity_bytes: What there is in all, where it is known.
        peak_note: What to say behind the size of the peak where there is room.
        strips: Rows of bands to draw below.
    """
    totals = [sum(point.categories) for point in points]
    highest = max(*totals, *(point.reserved_bytes for point in points), 1)
    capacity = capacity_bytes if (capacity_bytes or 0) <= highest * HIGHEST_CAPACITY else None
    scale = sizes(max(highest, capacity or 0))
    lefts = scales.positions(points)
    areas = scales.areas(points, lefts, scale)
    peak = totals.index(max(totals))
    label = "" if capacity_bytes is None else f"capacity {format_size(capacity_bytes)}"
    return Timeline(
        areas=tuple(areas),
        labels=tuple(filter(None, (inside(area, lefts, CATEGORY_WORDS[area.category]) for area in areas))),
        reserved=scales.steps(lefts, [scale.below_top(point.reserved_bytes) for point in points]),
        grid=grid(scale, capacity or (int(scale.high * _PLACE_OF_BEYOND) if label else None)),
        capacity=None if capacity is None else Level(scale.below_top(capacity), label),
        beyond=f"{label}, far above" if label and capacity is None else None,
        peak_x=lefts[peak],
        peak_y=scale.below_top(totals[peak]),
        peak_label=f"peak {format_size(totals[peak])}",
        peak_note=peak_note,
        is_peak_right=lefts[peak] > _RIGHT_HALF,
        first=f"event {points[0].event}",
        last=_end(points[-1]),
        strips=strips,
    )


def grid(scale: Scale, *taken: int | None) -> tuple[Level, ...]:
    """Return levels of round sizes, without those whose label would lie on that of a size that is taken."""
    room = scale.high * _ROOM_FOR_LABEL
    free = [size for size in round_sizes(scale) if all(other is None or abs(size - other) > room for other in taken)]
    return tuple(Level(scale.below_top(size), size_label(size)) for size in free)


def _end(point: TimelinePoint) -> str:
    seconds = "" if point.microseconds is None else f", {point.microseconds / 1e6:.2f} s"
    return f"event {point.event}{seconds}"
