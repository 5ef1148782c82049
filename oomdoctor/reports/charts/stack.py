"""Memory over time as areas of steps, one category's on the other's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from oomdoctor.reports.charts.scales import SCALE
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.reports.charts.scales import Scale
    from oomdoctor.results import TimelinePoint

Corner: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Area:
    """One category's part of the stack.

    Attributes:
        category: What the memory is for.
        lows: Distance of its lower edge from the plot's upper edge, at each point of the timeline.
        highs: The same of its upper edge.
        points: The area as the corners of a polygon.
    """

    category: Category
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    points: str


def positions(points: Sequence[TimelinePoint]) -> list[float]:
    """Where each point begins, by the index of its event."""
    return [event_position(points, point.event) for point in points]


def event_position(points: Sequence[TimelinePoint], event: int) -> float:
    """Where an event lies, in units of the plot."""
    first, span = points[0].event, max(points[-1].event - points[0].event, 1)
    # A document from elsewhere may have its events in any order.
    return min(SCALE, max(0, round((event - first) * SCALE / span, 1)))


def areas(points: Sequence[TimelinePoint], lefts: Sequence[float], scale: Scale) -> list[Area]:
    """The areas of the categories that hold anything, from the bottom."""
    floor = [0] * len(points)
    found = []
    for index, category in enumerate(Category):
        held = [point.categories[index] if index < len(point.categories) else 0 for point in points]
        if any(held):
            ceiling = [low + size for low, size in zip(floor, held, strict=True)]
            found.append(_area(category, lefts, _heights(floor, scale), _heights(ceiling, scale)))
            floor = ceiling
    return found


def steps(lefts: Sequence[float], heights: Sequence[float]) -> str:
    """A line that keeps its level until the next point, as the corners of a polyline."""
    return joined(_corners(lefts, heights))


def joined(corners: Iterable[Corner]) -> str:
    """Corners as SVG takes them."""
    return " ".join(f"{x:g},{y:g}" for x, y in corners)


def _heights(values: Sequence[int], scale: Scale) -> tuple[float, ...]:
    return tuple(map(scale.below_top, values))


def _area(category: Category, lefts: Sequence[float], lows: tuple[float, ...], highs: tuple[float, ...]) -> Area:
    return Area(category, lows, highs, joined([*_corners(lefts, highs), *reversed(_corners(lefts, lows))]))


def _corners(lefts: Sequence[float], heights: Sequence[float]) -> list[Corner]:
    corners: list[Corner] = []
    for index, (left, height) in enumerate(zip(lefts, heights, strict=True)):
        if not index:
            corners.append((left, height))
        elif height != heights[index - 1]:
            corners += [(left, heights[index - 1]), (left, height)]
    corners.append((SCALE, heights[-1]))
    return corners
