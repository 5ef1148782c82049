"""The part of a line of code that a finding is about, as it is shown: cut where it is long, every character seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.visible import columns, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Finding

_TAB: Final = "    "
_SMALLEST_WIDTH: Final = 20
_MOST_CHARACTERS: Final = 2000  # of an endless line, no more than this before and after is looked at


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line in three parts.

    Attributes:
        before: What comes before the part that is pointed at.
        marked: The part that is pointed at; empty where it is the end of the line.
        after: What comes after it.
    """

    before: str
    marked: str
    after: str

    @property
    def offset(self) -> int:
        """Columns before the part that is pointed at."""
        return columns(self.before)

    @property
    def length(self) -> int:
        """Columns that are pointed at, at least one."""
        return max(columns(self.marked), 1)


def excerpt(finding: Finding, width: int, *, ascii_only: bool = False) -> Excerpt | None:
    """What of a finding's line fits into so many columns; the part that is pointed at comes first.

    Args:
        finding: Its `source` is the line, its columns count characters.
        width: Columns of a terminal; not fewer than 20 are taken.
        ascii_only: Whether what is no ASCII is escaped.

    Returns:
        None where the line is not known or blank.
    """
    source = finding.source.rstrip()
    if not source:
        return None
    start = min(max(finding.column - 1, 0), len(source))
    end = finding.end_column - 1 if finding.end_line <= finding.line else len(source)
    first, last = max(start - _MOST_CHARACTERS, 0), start + _MOST_CHARACTERS
    line = _Line(
        cells=[_cell(character, ascii_only=ascii_only) for character in source[first:last]],
        start=start - first,
        end=max(min(end, last, len(source)), start) - first,
        goes_on=(first > 0, last < len(source)),
    )
    return _fitting(line, max(width, _SMALLEST_WIDTH), "..." if ascii_only else "\u2026")


def _cell(character: str, *, ascii_only: bool) -> str:
    return _TAB if character == "\t" else shown(character, ascii_only=ascii_only)


@dataclass(frozen=True, slots=True)
class _Line:
    """Characters as they are shown, which of them are pointed at, and whether there are more before and after."""

    cells: list[str]
    start: int
    end: int
    goes_on: tuple[bool, bool]


def _fitting(line: _Line, width: int, dots: str) -> Excerpt:
    left, right = 0, len(line.cells)
    if any(line.goes_on) or columns("".join(line.cells)) > width:
        left, right = _window([columns(cell) for cell in line.cells], (line.start, line.end), width - 2 * len(dots))
    end = min(line.end, right)
    return Excerpt(
        before=(dots if left or line.goes_on[0] else "") + "".join(line.cells[left : line.start]),
        marked="".join(line.cells[line.start : end]),
        after="".join(line.cells[end:right]) + (dots if right < len(line.cells) or line.goes_on[1] else ""),
    )


def _window(widths: Sequence[int], marked: tuple[int, int], width: int) -> tuple[int, int]:
    """First and last cell that are shown: those that are pointed at, then as many around them as there is room for."""
    left = right = marked[0]
    room = width
    while right < marked[1] and widths[right] <= room:
        room -= widths[right]
        right += 1
    for share in (room // 2, 0):
        while left > 0 and widths[left - 1] <= room - share:
            left -= 1
            room -= widths[left]
        while right < len(widths) and widths[right] <= room:
            room -= widths[right]
            right += 1
    return left, right
