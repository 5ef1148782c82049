"""Memory over time, stacked by category under the line of the device's capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.charts import stack
from oomdoctor.reports.charts.labels import inside
from oomdoctor.reports.charts.scales import SCALE, round_sizes, size_label, sizes
from oomdoctor.reports.wording import CATEGORY_WORDS
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.reports.charts.labels import AreaLabel
    from oomdoctor.reports.charts.phases import Band
    from oomdoctor.reports.charts.scales import Scale
    from oomdoctor.reports.charts.stack import Area
    from oomdoctor.results import TimelinePoint

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
    """The chart of a timeline with at least one point.

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
    lefts = stack.positions(points)
    areas = stack.areas(points, lefts, scale)
    peak = totals.index(max(totals))
    label = "" if capacity_bytes is None else f"capacity {format_size(capacity_bytes)}"
    return Timeline(
        areas=tuple(areas),
        labels=tuple(filter(None, (inside(area, lefts, CATEGORY_WORDS[area.category]) for area in areas))),
        reserved=stack.steps(lefts, [scale.below_top(point.reserved_bytes) for point in points]),
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
    """Levels of round sizes, without those whose label would lie on that of a size that is taken."""
    room = scale.high * _ROOM_FOR_LABEL
    free = [size for size in round_sizes(scale) if all(other is None or abs(size - other) > room for other in taken)]
    return tuple(Level(scale.below_top(size), size_label(size)) for size in free)


def _end(point: TimelinePoint) -> str:
    seconds = "" if point.microseconds is None else f", {point.microseconds / 1e6:.2f} s"
    return f"event {point.event}{seconds}"
