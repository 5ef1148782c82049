"""The geometry of the timeline's chart: where its areas, lines and labels are, in units that a template can draw.

The plot is a box of `SCALE` by `SCALE` units, stretched to the page's width; labels are placed in per cent of it,
so that their letters are not stretched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import SnapshotSummary

SCALE: Final = 1000
"""Units of the plot's width and height."""

_HIGHEST_CAPACITY: Final = 3  # a capacity beyond so many times what was used would flatten everything else
_HEADROOM: Final = 1.06
_MOST_GRID_LINES: Final = 5
_ROOM_FOR_LABEL: Final = 0.06
_RIGHT_HALF: Final = SCALE / 2


@dataclass(frozen=True, slots=True)
class Area:
    """One category's part of the stack, as the points of a polygon."""

    category: Category
    points: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line and its label; `y` is in units of the plot."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything that the template draws.

    Attributes:
        areas: Stacked from the bottom.
        reserved: Points of the line of reserved memory.
        grid: Levels of round sizes.
        capacity: The device's memory; None where it is not known or far above the plot.
        peak_x: Where the peak is, in units of the plot.
        peak_y: The same.
        peak_label: How much was allocated there.
        is_peak_right: Whether the peak is in the right half, so that its label has room on the left.
        first: What the left end is.
        last: What the right end is.
    """

    areas: tuple[Area, ...]
    reserved: str
    grid: tuple[Level, ...]
    capacity: Level | None
    peak_x: float
    peak_y: float
    peak_label: str
    is_peak_right: bool
    first: str
    last: str


def chart(found: SnapshotSummary) -> Chart:
    """The chart of a snapshot with a timeline."""
    totals = [sum(point.categories) for point in found.timeline]
    highest = max(*totals, *(point.reserved_bytes for point in found.timeline), 1)
    capacity = found.total_bytes if (found.total_bytes or 0) <= highest * _HIGHEST_CAPACITY else None
    top = int(max(highest, capacity or 0) * _HEADROOM) + 1
    lefts = _lefts(found)
    peak = totals.index(max(totals))
    end = found.timeline[-1]
    seconds = "" if end.microseconds is None else f", {end.microseconds / 1e6:.2f} s"
    return Chart(
        areas=tuple(_areas(found, lefts, top)),
        reserved=_steps(lefts, [_height(point.reserved_bytes, top) for point in found.timeline]),
        grid=tuple(Level(_height(size, top), _round(size)) for size in _grid(top, capacity)),
        capacity=None if capacity is None else Level(_height(capacity, top), f"capacity {format_size(capacity)}"),
        peak_x=lefts[peak],
        peak_y=_height(totals[peak], top),
        peak_label=f"peak {format_size(totals[peak])}",
        is_peak_right=lefts[peak] > _RIGHT_HALF,
        first=f"event {found.timeline[0].event}",
        last=f"event {end.event}{seconds}",
    )


def _lefts(found: SnapshotSummary) -> list[float]:
    """Where each point begins, and where the last one ends."""
    events = [point.event for point in found.timeline]
    first, span = events[0], max(events[-1] - events[0], 1)
    # A document from elsewhere may have its events in any order.
    return [min(SCALE, max(0, round((event - first) * SCALE / span, 1))) for event in events]


def _areas(found: SnapshotSummary, lefts: Sequence[float], top: int) -> list[Area]:
    floor = [0] * len(lefts)
    areas = []
    for index, category in enumerate(Category):
        sizes = [point.categories[index] if index < len(point.categories) else 0 for point in found.timeline]
        if any(sizes):
            ceiling = [low + size for low, size in zip(floor, sizes, strict=True)]
            upper = _corners(lefts, [_height(size, top) for size in ceiling])
            lower = _corners(lefts, [_height(size, top) for size in floor])
            areas.append(Area(category, _joined([*upper, *reversed(lower)])))
            floor = ceiling
    return areas


def _corners(lefts: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """Memory keeps its level until the next event: the corners of a line of steps."""
    corners = []
    for index, (left, height) in enumerate(zip(lefts, heights, strict=True)):
        if index:
            corners.append((left, heights[index - 1]))
        corners.append((left, height))
    corners.append((SCALE, heights[-1]))
    return corners


def _steps(lefts: Sequence[float], heights: Sequence[float]) -> str:
    return _joined(_corners(lefts, heights))


def _joined(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in corners)


def _height(size_bytes: int, top: int) -> float:
    """A size as a distance from the plot's upper edge."""
    return round(SCALE - size_bytes * SCALE / top, 1)


def _grid(top: int, capacity: int | None) -> list[int]:
    step = 1
    while top // step > _MOST_GRID_LINES:
        step *= 2
    sizes = range(step, top, step)
    # A label would lie on that of the capacity.
    return [size for size in sizes if capacity is None or abs(size - capacity) > top * _ROOM_FOR_LABEL]


def _round(size_bytes: int) -> str:
    return format_size(size_bytes).replace(".00 ", " ")
