"""Annotations of GitHub Actions, and the summary of a job's step.

`::error file=train.py,line=3,title=OOM102::text` is one. Text of a document is in them only where it is escaped, so
that none of it can end a command or begin another. GitHub shows ten annotations of each kind for a step and drops the
rest; the worst come first here, and the rest are counted.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import count, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oomdoctor.report.issues import Issue, Issues, Level, Location
    from oomdoctor.results.document import Document


MOST_OF_A_KIND: Final = 10
"""Annotations of one level that GitHub shows for a step."""

_LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")
_WORDS: Final[Mapping[Level, str]] = MappingProxyType({"error": "error", "warning": "warning", "note": "notice"})
_DATA: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY: Final[Mapping[int, str]] = MappingProxyType({**_DATA, ord(":"): "%3A", ord(","): "%2C"})
_LONGEST_TITLE: Final = 200


def render(document: Document, found: Issues) -> str:
    """Return the issues as a runner's commands, and their sum as a line of its own."""
    del document
    return "\n".join([*commands(found), found.headline]) + "\n"


def commands(issues: Iterable[Issue]) -> Iterator[str]:
    """Yield the lines to print: at most ten annotations a level, worst first, and how many there are beyond these."""
    taken: Counter[Level] = Counter()
    for issue in sorted(issues, key=lambda found: _LEVELS.index(found.level)):
        taken[issue.level] += 1
        if taken[issue.level] <= MOST_OF_A_KIND:
            yield command(issue)
    beyond = [count(taken[level] - MOST_OF_A_KIND, _WORDS[level]) for level in _LEVELS if taken[level] > MOST_OF_A_KIND]
    if beyond:
        yield f"Not annotated, since GitHub shows {MOST_OF_A_KIND} of a kind: {', '.join(beyond)} more."


def command(issue: Issue) -> str:
    """Return the command that makes an annotation of an issue, without a newline."""
    properties = ",".join(f"{name}={escaped_property(value)}" for name, value in _properties(issue))
    text = "\n".join(visible(line) for line in issue.text_lines() if line)
    return f"::{_WORDS[issue.level]} {properties}::{escaped_data(text)}"


def _properties(issue: Issue) -> Iterator[tuple[str, str]]:
    location = issue.location
    if location.path is not None:
        yield "file", visible(repository_path(location.path))
    if location.path is not None and location.line is not None and location.cell is None:
        yield from ((name, str(number)) for name, number in _numbers(location) if number is not None)
    yield "title", visible(issue.title, _LONGEST_TITLE)


def _numbers(location: Location) -> list[tuple[str, int | None]]:
    lines = [("line", location.line), ("endLine", location.end_line)]
    # Columns may only be given where the annotation stays in one line.
    if location.end_line not in (None, location.line):
        return lines
    return [*lines, ("col", location.column), ("endColumn", location.end_column)]


def escaped_data(text: str) -> str:
    """Return text as the data of a command."""
    return text.translate(_DATA)


def escaped_property(text: str) -> str:
    """Return text as the value of a command's property."""
    return text.translate(_PROPERTY)


LIMIT_BYTES: Final = 1024 * 1024
"""Bytes of a step's summary above which GitHub shows none of it."""

VARIABLE: Final = "GITHUB_STEP_SUMMARY"
"""Names the file, where a runner runs the step."""

_CUT: Final = "\n\n*This summary was cut: GitHub shows 1 MiB of a step.*\n"


def append(markdown: str) -> None:
    """Add a report to the step's summary, where there is one; what does not fit is cut, and said to be.

    A summary that cannot be written is no reason to lose the report: standard error says so.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return
    path = Path(name)
    try:
        held = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(fitting(markdown, LIMIT_BYTES - held))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sys.stderr.write(f"warning: the step's summary cannot be written: {reason}\n")


def fitting(markdown: str, room_bytes: int) -> str:
    """Return the text, or as many whole lines of it as fit and a word about the rest; empty without room."""
    data = markdown.encode("utf-8", "replace")
    if len(data) <= room_bytes:
        return markdown
    room = room_bytes - len(_CUT.encode())
    if room <= 0:
        return ""
    kept = data[:room].decode("utf-8", "ignore")
    return kept[: kept.rfind("\n") + 1].rstrip("\n") + _CUT
