"""Scales, stacked areas and their labels.

A page has no script, so that what it says at either width is settled here: the wide plot's label and the narrow one's,
of which the style sheet shows one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.results import Category
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.results import TimelinePoint


SCALE: Final = 1000
"""Units of a plot's width and height."""

_MOST_LEVELS: Final = 5
_MOST_COUNTS: Final = 8
_ROUND: Final = (1, 2, 5)  # and ten times these, and so on


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values along an edge; what is outside of it lies at the nearer end.

    Attributes:
        low: Value at the beginning.
        high: Value at the end, above `low`.
        is_log: Whether equal steps are equal factors; `low` is above 0 then.
    """

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return distance of a value from the beginning, in units of the plot."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return round(share * SCALE, 1)

    def below_top(self, value: float) -> float:
        """Return distance of a value from the upper edge, where the scale goes up."""
        return round(SCALE - self.at(value), 1)


def sizes(highest_bytes: float) -> Scale:
    """Return the scale of memory, from nothing to a little above `highest_bytes`."""
    return Scale(0, max(highest_bytes, 1) * 1.06)


def round_sizes(scale: Scale) -> list[int]:
    """Return sizes that are powers of two times each other's distance, so that they read well in MiB and GiB."""
    step = 1
    while scale.high // step > _MOST_LEVELS:
        step *= 2
    return [step * number for number in range(1, math.ceil(scale.high / step))]


def size_label(size_bytes: int) -> str:
    """Return a round size as short as can be, such as `8 GiB`."""
    return format_size(size_bytes).replace(".00 ", " ")


def round_counts(scale: Scale) -> list[int]:
    """Return whole numbers to label: powers of two on a logarithmic scale, else 5, 10, 15 and the like."""
    if scale.is_log:
        exponents = range(max(0, math.ceil(math.log2(scale.low))), math.floor(math.log2(scale.high)) + 1)
        return [2**exponent for exponent in exponents[:: max(1, -(-len(exponents) // _MOST_COUNTS))]]
    step = next(
        digit * 10**power
        for power in range(400)
        for digit in _ROUND
        if (scale.high - scale.low) / (digit * 10**power) <= _MOST_COUNTS
    )
    # Floor division stays exact where a float would not.
    first = max(1, -int(-scale.low // step))
    return [step * number for number in range(first, int(scale.high // step) + 1)]


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
    """Return the horizontal position of each point, by the index of its event."""
    return [event_position(points, point.event) for point in points]


def event_position(points: Sequence[TimelinePoint], event: int) -> float:
    """Return the horizontal position of an event, in units of the plot."""
    first, span = points[0].event, max(points[-1].event - points[0].event, 1)
    # A document from elsewhere may have its events in any order.
    return min(SCALE, max(0, round((event - first) * SCALE / span, 1)))


def areas(points: Sequence[TimelinePoint], lefts: Sequence[float], scale: Scale) -> list[Area]:
    """Return the areas of the categories that hold anything, from the bottom."""
    floor = [0] * len(points)
    found = []
    for index, category in enumerate(Category):
        held = [point.categories[index] if index < len(point.categories) else 0 for point in points]
        if any(held):
            ceiling = [low + size for low, size in zip(floor, held, strict=True)]
            lows, highs = (tuple(map(scale.below_top, values)) for values in (floor, ceiling))
            outline = joined([*_corners(lefts, highs), *reversed(_corners(lefts, lows))])
            found.append(Area(category, lows, highs, outline))
            floor = ceiling
    return found


def steps(lefts: Sequence[float], heights: Sequence[float]) -> str:
    """Return a line that keeps its level until the next point, as the corners of a polyline."""
    return joined(_corners(lefts, heights))


def joined(corners: Iterable[Corner]) -> str:
    """Return corners as SVG takes them."""
    return " ".join(f"{x:g},{y:g}" for x, y in corners)


def _corners(lefts: Sequence[float], heights: Sequence[float]) -> list[Corner]:
    corners: list[Corner] = []
    for index, (left, height) in enumerate(zip(lefts, heights, strict=True)):
        if not index:
            corners.append((left, height))
        elif height != heights[index - 1]:
            corners += [(left, heights[index - 1]), (left, height)]
    corners.append((SCALE, heights[-1]))
    return corners


_WIDE_PIXELS: Final = 800  # a plot on a page of 900 pixels; narrower ones are treated as narrow
_NARROW_PIXELS: Final = 320
_LETTER_PIXELS: Final = 7.2
_MARGIN_PIXELS: Final = 5
_AREA_HEIGHT: Final = 65  # units of the plot that a line of text needs
_CANDIDATES: Final = 24


@dataclass(frozen=True, slots=True)
class Words:
    """Label at either width; empty where nothing has room."""

    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class AreaLabel:
    """The name of an area inside of it; `x` and `y` are its middle, in units of the plot.

    Attributes:
        is_wide_only: Whether a narrow plot has no room for it.
    """

    x: float
    y: float
    text: str
    is_wide_only: bool


def longest_fitting(options: Sequence[str], width: float) -> Words:
    """Return the longest of several texts that fits `width` units of the plot, at either width."""
    return Words(_first(options, width * _WIDE_PIXELS), _first(options, width * _NARROW_PIXELS))


def _first(options: Sequence[str], room: float) -> str:
    return next((text for text in options if _pixels(text) * SCALE <= room), "")


def _pixels(text: str) -> float:
    return len(text) * _LETTER_PIXELS + _MARGIN_PIXELS


def inside(area: Area, lefts: Sequence[float], text: str) -> AreaLabel | None:
    """Return a position where an area of the stack is high enough for its name; None where there is none."""
    for plot_pixels in (_NARROW_PIXELS, _WIDE_PIXELS):
        width = _pixels(text) * SCALE / plot_pixels
        if (found := _highest(area, lefts, width)) is not None:
            return AreaLabel(*found, text, is_wide_only=plot_pixels == _WIDE_PIXELS)
    return None


def _highest(area: Area, lefts: Sequence[float], width: float) -> tuple[float, float] | None:
    if width >= SCALE or list(lefts) != sorted(lefts):
        return None
    best: tuple[float, float, float] | None = None
    for number in range(_CANDIDATES):
        left = (SCALE - width) * number / (_CANDIDATES - 1)
        top, bottom = _clear(area, lefts, left, left + width)
        if bottom - top >= _AREA_HEIGHT and (best is None or bottom - top > best[0]):
            best = bottom - top, left + width / 2, (top + bottom) / 2
    return None if best is None else (round(best[1], 1), round(best[2], 1))


def _clear(area: Area, lefts: Sequence[float], left: float, right: float) -> tuple[float, float]:
    """Return the heights between which the area is unbroken from `left` to `right`."""
    first, last = max(0, bisect_right(lefts, left) - 1), max(1, bisect_left(lefts, right))
    return max(area.highs[first:last]), min(area.lows[first:last])
