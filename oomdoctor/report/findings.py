"""The sentences of lint's report, and the part of a line of code that a finding is about.

All text here is plain: no colour, no markup. Text that users control is made visible.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import columns, count, shown, visible
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.results import Finding, LintResult, Unreadable


WORST_FIRST: Final = tuple(reversed(Severity))
"""Severities in the order in which they are counted."""

NOT_LINTED: Final = "not linted"
"""Title of a file that was not linted."""

FIXABLE: Final = "[*]"
"""Mark of a finding with a fix."""


def headline(result: LintResult) -> str:
    """Return the number of findings in one line, such as `3 findings (1 error, 2 warnings) in 12 files`."""
    if result.findings:
        return f"{count(len(result.findings), 'finding')} ({severities(result.findings)}) in {_files(result)}"
    if not result.files and result.skipped_files:
        return f"no findings: no file of {result.skipped_files} uses torch"
    if not result.files and result.unreadable:
        return "nothing was linted"
    return f"no findings in {_files(result)}" if result.files else "no findings: there are no files to check"


def severities(findings: Iterable[Finding]) -> str:
    """Return the number of findings of each severity, such as `1 error, 2 warnings`."""
    counted = Counter(finding.severity for finding in findings)
    return ", ".join(count(counted[severity], severity.value) for severity in WORST_FIRST if counted[severity])


def summary(result: LintResult) -> str:
    """Return the whole result in sentences of one line."""
    start = headline(result)
    first = f"Found {start}" if result.findings else f"{start[:1].upper()}{start[1:]}"
    return " ".join(f"{part}." for part in (first, *remarks(result)))


def remarks(result: LintResult) -> Iterator[str]:
    """Yield further facts about the run, such as `1 can be fixed with `--fix``; no full stops."""
    if fixable := sum(finding.fixable for finding in result.findings):
        yield f"{fixable} can be fixed with `--fix`"
    if result.fixed:
        yield f"{result.fixed} {_were(result.fixed)} fixed"
    if result.suppressed:
        yield f"{result.suppressed} {'is' if result.suppressed == 1 else 'are'} suppressed"
    if unread := len({found.path for found in result.unreadable}):
        yield f"{count(unread, 'file')} could not be linted"


def place(found: Finding | Unreadable) -> str:
    """Return the position of a finding: `train.py:12:9`, `train.ipynb:cell 3:12:9`, or only the file."""
    cell = None if found.cell is None else f"cell {found.cell}"
    numbers = () if found.line is None else (str(found.line), str(found.column or 1))
    return ":".join(filter(None, (path(found.path), cell, *numbers)))


def in_file(found: Finding | Unreadable) -> str:
    """Return the position of a finding in its file: `12:9`, `cell 3, 12:9`; empty for the whole file."""
    cell = "" if found.cell is None else f"cell {found.cell}"
    numbers = "" if found.line is None else f"{found.line}:{found.column or 1}"
    return ", ".join(filter(None, (cell, numbers)))


def path(text: str) -> str:
    """Return a path, changed so that no line that begins with it is a command to GitHub's runner."""
    seen = visible(text)
    return f"./{seen}" if seen.lstrip().startswith(("::", "##[")) else seen


def unread(found: Unreadable) -> str:
    """Return the reason why a file was not linted."""
    return f"not linted: {visible(found.problem)}"


def by_file(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Group findings by file, in the order in which they are given."""
    return [(name, list(group)) for name, group in groupby(findings, key=lambda finding: finding.path)]


def read(result: LintResult) -> str:
    """Return the extent of the run, such as `12 files, 3410 lines, 22 rules; 30 files without torch were skipped`."""
    looked = f"{_files(result)}, {count(result.lines, 'line')}, {count(len(result.rules), 'rule')}"
    if not result.skipped_files:
        return looked
    return f"{looked}; {count(result.skipped_files, 'file')} without torch {_were(result.skipped_files)} skipped"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _files(result: LintResult) -> str:
    return count(result.files, "file")


_TAB: Final = "    "
_SMALLEST_WIDTH: Final = 20
_MOST_CHARACTERS: Final = 2000  # of an endless line, no more than this before and after is looked at


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line in three parts.

    Attributes:
        before: The text before the marked part.
        marked: The part that the finding is about; empty where it is the end of the line.
        after: The text after the marked part.
    """

    before: str
    marked: str
    after: str

    @property
    def offset(self) -> int:
        """Number of columns before the marked part."""
        return columns(self.before)

    @property
    def length(self) -> int:
        """Number of marked columns, at least one."""
        return max(columns(self.marked), 1)


def excerpt(finding: Finding, width: int, *, ascii_only: bool = False) -> Excerpt | None:
    """Return the part of a finding's line that fits into `width` columns; the marked part comes first.

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
