"""Memory over a snapshot's history as an area of block characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import SnapshotSummary, TimelinePoint

_ROWS: Final = 8
_LONGEST: Final = 90
_LABEL: Final = len("1023.99 MiB") + 1
_BLOCKS: Final = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BLOCKS: Final = "    #####"
_MARKS: Final = ("\u25bc", "v")


def timeline(found: SnapshotSummary, width: int, *, unicode: bool) -> Text:
    """Allocated memory as an area under a mark at its peak; `width` columns at most, labels included."""
    columns = allocated_by_column(found.timeline, min(_LONGEST, width - _LABEL))
    top = max(columns)
    levels = [8 * _ROWS * value // max(top, 1) for value in columns]
    blocks = _BLOCKS if unicode else _ASCII_BLOCKS
    lines = [_peak_line(columns, top, _MARKS[not unicode])]
    for row in reversed(range(_ROWS)):
        label = format_size(top) if row == _ROWS - 1 else "0" if row == 0 else ""
        area = "".join(blocks[min(8, max(0, level - 8 * row))] for level in levels)
        lines.append(Text.assemble((f"{label:>{_LABEL - 1}} ", "dim"), (area.rstrip(), "cyan")))
    lines.append(_axis(found, len(columns)))
    return Text("\n").join(lines)


def allocated_by_column(points: Sequence[TimelinePoint], most: int) -> list[int]:
    """The highest allocated bytes in each of at most `most` equal parts of the points."""
    number = min(most, len(points))
    ends = [(index * len(points) // number, (index + 1) * len(points) // number) for index in range(number)]
    return [max(sum(point.categories) for point in points[first:last]) for first, last in ends]


def _peak_line(columns: Sequence[int], top: int, mark: str) -> Text:
    at = columns.index(top)
    words = "the peak"
    left = _LABEL + at
    if len(words) < at:
        return Text(f"{' ' * (left - len(words) - 1)}{words} {mark}", "bold")
    return Text(f"{' ' * left}{mark} {words}", "bold")


def _axis(found: SnapshotSummary, width: int) -> Text:
    first, last = found.timeline[0], found.timeline[-1]
    seconds = "" if last.microseconds is None else f", {last.microseconds / 1e6:.2f} s"
    start, end = f"event {first.event}", f"{last.event}{seconds}"
    gap = max(1, width - len(start) - len(end))
    return Text(f"{' ' * _LABEL}{start}{' ' * gap}{end}", "dim")
