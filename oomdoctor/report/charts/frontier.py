"""Chart of what fits over a size besides the batch: a line for each combination of the other sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.charts.scales import SCALE, Scale, joined, round_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.results import FrontierCell, FrontierResult

_MOST_SERIES: Final = 6
"""Lines that colours tell apart."""

_WIDE_RANGE: Final = 8
"""Factor between the ends from which a logarithmic scale shows both."""

_ROOM_FOR_LABEL: Final = 60  # units of the plot


@dataclass(frozen=True, slots=True)
class CellPoint:
    """Place of one cell in the plot.

    Attributes:
        x: Its size, in units of the plot.
        y: What fits, as a distance from the upper edge.
        fits: Whether anything does.
        title: The same in words.
    """

    x: float
    y: float
    fits: bool
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    """One combination of the other sizes.

    Attributes:
        name: These sizes; empty where there are none.
        maximum: Points of the line through the largest that fit.
        recommended: Points of the line through the recommended ones.
        points: The cells.
    """

    name: str
    maximum: str
    recommended: str
    points: tuple[CellPoint, ...]


@dataclass(frozen=True, slots=True)
class FrontierChart:
    """Everything that the template draws.

    Attributes:
        across: Name of the size along the lower edge.
        up: What is counted upwards.
        series: The lines.
        grid: Round numbers upwards: where, as a distance from the upper edge, and the number.
        labels: Sizes along the lower edge: where, and the size.
        logarithmic: Names of what is on a logarithmic scale.
        left_out: Combinations of the other sizes that are not drawn.
    """

    across: str
    up: str
    series: tuple[Series, ...]
    grid: tuple[tuple[float, int], ...]
    labels: tuple[tuple[float, int], ...]
    logarithmic: tuple[str, ...]
    left_out: int


def chart(result: FrontierResult) -> FrontierChart | None:
    """Return the chart of a frontier; None where fewer than two cells of it have an answer above nothing."""
    known = [cell for cell in result.cells if cell.problem is None and len(cell.sizes) == len(result.axes)]
    fitting = [cell.maximum for cell in known if cell.maximum > 0]
    if not result.axes or len(fitting) <= 1 or any(axis.size < 1 for cell in known for axis in cell.sizes):
        return None
    place = _longest_axis(known)
    across, up = _scale([cell.sizes[place].size for cell in known]), _scale(fitting)
    groups: dict[str, list[FrontierCell]] = {}
    for cell in sorted(known, key=lambda cell: cell.sizes[place].size):
        rest = (axis for other, axis in enumerate(cell.sizes) if other != place)
        groups.setdefault(", ".join(f"{axis.name} {axis.size}" for axis in rest), []).append(cell)
    drawn = list(groups.items())[:_MOST_SERIES]
    name, counted = result.axes[place], "micro-batch" if result.searched_size is None else result.searched_size.name
    return FrontierChart(
        across=name,
        up=counted,
        series=tuple(_series(others, cells, place, across, up) for others, cells in drawn),
        grid=tuple((up.below_top(count), count) for count in round_counts(up)),
        labels=tuple(_labels(sorted({cell.sizes[place].size for cell in known}), across)),
        logarithmic=tuple(each for each, scale in ((name, across), (counted, up)) if scale.is_log),
        left_out=len(groups) - len(drawn),
    )


def _longest_axis(cells: Sequence[FrontierCell]) -> int:
    """Return the place of the size that has most values."""
    places = range(len(cells[0].sizes))
    return max(places, key=lambda place: len({cell.sizes[place].size for cell in cells}))


def _scale(values: Sequence[int]) -> Scale:
    low, high = min(values), max(values)
    if high >= low * _WIDE_RANGE:
        return Scale(max(low / 1.3, 0.8), high * 1.3, is_log=True)
    return Scale(0, high * 1.1)


def _series(name: str, cells: Sequence[FrontierCell], place: int, across: Scale, up: Scale) -> Series:
    fitting = [(across.at(cell.sizes[place].size), cell) for cell in cells if cell.maximum > 0]
    return Series(
        name=name,
        maximum=joined([(x, up.below_top(cell.maximum)) for x, cell in fitting]),
        recommended=joined([(x, up.below_top(cell.recommended)) for x, cell in fitting if cell.recommended > 0]),
        points=tuple(_point(cell, across.at(cell.sizes[place].size), up) for cell in cells),
    )


def _point(cell: FrontierCell, x: float, up: Scale) -> CellPoint:
    at = ", ".join(f"{axis.name} {axis.size}" for axis in cell.sizes)
    if cell.maximum <= 0:
        return CellPoint(x, SCALE, fits=False, title=f"{at}: nothing fits")
    title = f"{at}: {cell.maximum}, recommended {cell.recommended}"
    return CellPoint(x, up.below_top(cell.maximum), fits=True, title=title)


def _labels(sizes: Sequence[int], across: Scale) -> Iterator[tuple[float, int]]:
    """Yield the sizes that have room for their number."""
    last = float("-inf")
    for size in sizes:
        if (x := across.at(size)) - last >= _ROOM_FOR_LABEL:
            last = x
            yield x, size
