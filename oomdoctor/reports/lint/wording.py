"""The sentences about what lint found that every report for people shares.

All text here is plain: no colour, no markup. Text that users control is made visible.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from oomdoctor.reports.visible import visible
from oomdoctor.reports.wording import count
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oomdoctor.results import Finding, LintResult, Unreadable

WORST_FIRST: Final = tuple(reversed(Severity))
"""Severities in the order in which they are counted."""

FIXABLE: Final = "[*]"
"""Stands beside a finding that `--fix` can put right."""

OUTCOME: Final[Mapping[str, Literal["passed", "failure"]]] = MappingProxyType(
    {Severity.NOTE: "passed", Severity.WARNING: "failure", Severity.ERROR: "failure"}
)
"""Whether a finding of a severity fails the case that it is in a test report; a note is only worth knowing."""


def headline(result: LintResult) -> str:
    """What was found in one line, such as `3 findings (1 error, 2 warnings) in 12 files`."""
    if result.findings:
        return f"{count(len(result.findings), 'finding')} ({severities(result.findings)}) in {_files(result)}"
    if not result.files and result.skipped_files:
        return f"no findings: no file of {result.skipped_files} uses torch"
    if not result.files and result.unreadable:
        return "nothing was linted"
    return f"no findings in {_files(result)}" if result.files else "no findings: there was no file to look at"


def severities(findings: Iterable[Finding]) -> str:
    """How many there are of each severity, such as `1 error, 2 warnings`."""
    counted = Counter(finding.severity for finding in findings)
    return ", ".join(count(counted[severity], severity.value) for severity in WORST_FIRST if counted[severity])


def summary(result: LintResult) -> str:
    """All that was found, in sentences of one line."""
    start = headline(result)
    first = f"Found {start}" if result.findings else f"{start[:1].upper()}{start[1:]}"
    return " ".join(f"{part}." for part in (first, *remarks(result)))


def remarks(result: LintResult) -> Iterator[str]:
    """What else there is to know, such as `1 can be fixed with `--fix``; no full stops."""
    if fixable := sum(finding.fixable for finding in result.findings):
        yield f"{fixable} can be fixed with `--fix`"
    if result.fixed:
        yield f"{result.fixed} {_were(result.fixed)} fixed"
    if result.suppressed:
        yield f"{result.suppressed} {'is' if result.suppressed == 1 else 'are'} suppressed"
    if unread := len({found.path for found in result.unreadable}):
        yield f"{count(unread, 'file')} could not be linted"


def place(found: Finding | Unreadable) -> str:
    """Where something is: `train.py:12:9`, `train.ipynb:cell 3:12:9`, or only the file."""
    cell = None if found.cell is None else f"cell {found.cell}"
    numbers = () if found.line is None else (str(found.line), str(found.column or 1))
    return ":".join(filter(None, (path(found.path), cell, *numbers)))


def in_file(found: Finding | Unreadable) -> str:
    """Where something is within its file: `12:9`, `cell 3, 12:9`; empty for the whole file."""
    cell = "" if found.cell is None else f"cell {found.cell}"
    numbers = "" if found.line is None else f"{found.line}:{found.column or 1}"
    return ", ".join(filter(None, (cell, numbers)))


def path(text: str) -> str:
    """A path, begun so that no line that begins with it is a command to GitHub's runner."""
    seen = visible(text)
    return f"./{seen}" if seen.lstrip().startswith(("::", "##[")) else seen


def unread(found: Unreadable) -> str:
    """Why a file was not linted."""
    return f"not linted: {visible(found.problem)}"


def by_file(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """The findings of each file, in the order in which they are given."""
    return [(name, list(group)) for name, group in groupby(findings, key=lambda finding: finding.path)]


def read(result: LintResult) -> str:
    """What was looked at, such as `12 files, 3410 lines, 22 rules; 30 files without torch were passed over`."""
    looked = f"{_files(result)}, {count(result.lines, 'line')}, {count(len(result.rules), 'rule')}"
    if not result.skipped_files:
        return looked
    return f"{looked}; {count(result.skipped_files, 'file')} without torch {_were(result.skipped_files)} passed over"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _files(result: LintResult) -> str:
    return count(result.files, "file")
