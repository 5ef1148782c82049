"""Which words have room where, on a page as wide as a desk's and as narrow as a telephone's.

A page has no script, so that what it says at either width is settled here: the wide plot's label and the narrow one's,
of which the style sheet shows one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.charts.scales import SCALE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.reports.charts.stack import Area

_WIDE_PIXELS: Final = 800  # a plot on a page of 900 pixels; narrower ones are treated as narrow
_NARROW_PIXELS: Final = 320
_LETTER_PIXELS: Final = 7.2
_MARGIN_PIXELS: Final = 5
_AREA_HEIGHT: Final = 65  # units of the plot that a line of text needs
_CANDIDATES: Final = 24


@dataclass(frozen=True, slots=True)
class Words:
    """What is said at either width; empty where nothing has room."""

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
    """The first of several ways to say it, longest first, that fits `width` units of the plot, at either width."""
    return Words(_first(options, width * _WIDE_PIXELS), _first(options, width * _NARROW_PIXELS))


def _first(options: Sequence[str], room: float) -> str:
    return next((text for text in options if _pixels(text) * SCALE <= room), "")


def _pixels(text: str) -> float:
    return len(text) * _LETTER_PIXELS + _MARGIN_PIXELS


def inside(area: Area, lefts: Sequence[float], text: str) -> AreaLabel | None:
    """Where an area of the stack is high enough for its name; None where it nowhere is."""
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
    """The heights between which the area is unbroken from `left` to `right`."""
    first, last = max(0, bisect_right(lefts, left) - 1), max(1, bisect_left(lefts, right))
    return max(area.highs[first:last]), min(area.lows[first:last])
