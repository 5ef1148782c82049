"""Largest micro-batch over what a step costs more, one point a set of remedies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.charts.scales import SCALE, Scale, joined, round_counts
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import MeasuredRemedies, PrescribeResult

_MOST_POINTS: Final = 200
_MOST_PERCENT: Final = 10_000.0
_IS_LOG_FROM: Final = 8
"""A largest maximum that is so many times the smallest one is drawn on a logarithmic scale."""
_RIGHT_PART: Final = 0.6 * SCALE


@dataclass(frozen=True, slots=True)
class Point:
    """One set of remedies.

    Attributes:
        x: Its cost, in units of the plot.
        y: Its maximum, as a distance from the upper edge.
        keeps: What it keeps of the numbers: `same`, `rounding` or `other`.
        on_front: Whether nothing that costs less reaches as much.
        label: What is written beside it; empty for nothing.
        is_right: Whether the label has room on the left.
        title: The same in words.
    """

    x: float
    y: float
    keeps: str
    on_front: bool
    label: str
    is_right: bool
    title: str


@dataclass(frozen=True, slots=True)
class FrontChart:
    """Everything that the template draws.

    Attributes:
        points: The sets of remedies.
        lines: The front of each exactness that has several points on it, with the exactness.
        counts: Micro-batches worth a label along the left edge: where, and the size.
        costs: Percentages worth a label along the lower edge: where, and the number.
        is_log: Whether the micro-batches are on a logarithmic scale.
        left_out: Measured rows that are not drawn: nothing fits, what they cost has no known count, or too many.
    """

    points: tuple[Point, ...]
    lines: tuple[tuple[str, str], ...]
    counts: tuple[tuple[float, int], ...]
    costs: tuple[tuple[float, int], ...]
    is_log: bool
    left_out: int


def chart(result: PrescribeResult) -> FrontChart | None:
    """Return the chart of a prescription; None where fewer than two sets have a known cost."""
    measured = [row for row in (result.plain, *result.alone, *result.combined) if row.outcome == "measured"]
    drawn = [row for row in measured if row.maximum > 0 and _percent(row) is not None][:_MOST_POINTS]
    if len(drawn) < 2:  # noqa: PLR2004 - one point is no chart
        return None
    up = _sizes([row.maximum for row in drawn])
    across = Scale(0, max(1.1 * max(_percent(row) or 0 for row in drawn), 1))
    named = [row.remedies for row in (result.plain, result.prescribed) if row is not None]
    return FrontChart(
        points=tuple(
            _point(row, across, up, is_named=row.remedies in named)
            for row in sorted(drawn, key=lambda row: row.on_front)  # the front on top of what it hides
        ),
        lines=tuple(_lines(drawn, across, up)),
        counts=tuple((up.below_top(count), count) for count in round_counts(up)),
        costs=tuple((across.at(count), count) for count in (0, *round_counts(across))),
        is_log=up.is_log,
        left_out=len(measured) - len(drawn),
    )


def _percent(row: MeasuredRemedies) -> float | None:
    """Return the larger of recomputed FLOPs and extra bytes, by which sets are compared; None where one is unknown."""
    counts = (row.recomputed_flops_percent, row.extra_bytes_percent)
    if not row.remedies:
        return 0.0
    if any(count is None or not math.isfinite(count) for count in counts):
        return None
    return min(max(0.0, *(count or 0.0 for count in counts)), _MOST_PERCENT)


def _sizes(maxima: Sequence[int]) -> Scale:
    low, high = min(maxima), max(maxima)
    if high >= _IS_LOG_FROM * low:
        return Scale(low / 1.3, high * 1.3, is_log=True)
    return Scale(0, high * 1.15)


def _point(row: MeasuredRemedies, across: Scale, up: Scale, *, is_named: bool) -> Point:
    name = " + ".join(row.remedies) or "as it is"
    percent = _percent(row) or 0.0
    x = across.at(percent)
    host = f", {format_size(row.host_bytes)} to the host" if row.host_bytes > 0 else ""
    title = f"{name}: micro-batch {row.maximum}, {percent:.1f} % more{host}"
    label = f"{name}: {row.maximum}" if is_named else ""
    return Point(x, up.below_top(row.maximum), row.exactness, row.on_front, label, x > _RIGHT_PART, title)


def _lines(rows: Sequence[MeasuredRemedies], across: Scale, up: Scale) -> list[tuple[str, str]]:
    found = []
    for keeps in ("same", "rounding", "other"):
        front = [row for row in rows if row.on_front and row.exactness == keeps and not row.host_bytes]
        corners = sorted((across.at(_percent(row) or 0.0), -row.maximum) for row in front)
        if len(corners) > 1:
            found.append((keeps, joined([(x, up.below_top(-size)) for x, size in corners])))
    return found
