"""Annotations of GitHub Actions: lines of a job's output that its runner takes for commands.

`::error file=train.py,line=3,title=OOM102::text` is one. Text of a document is in them only where it is escaped, so
that none of it can end a command or begin another. GitHub shows ten annotations of each kind for a step and drops the
rest; the worst come first here, and the rest are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oomdoctor.reports.locations import repository_path
from oomdoctor.reports.visible import visible
from oomdoctor.reports.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST_OF_A_KIND: Final = 10
"""Annotations of one level that GitHub shows for a step."""

Level: TypeAlias = Literal["error", "warning", "notice"]

_LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "notice")
_DATA: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY: Final[Mapping[int, str]] = MappingProxyType({**_DATA, ord(":"): "%3A", ord(","): "%2C"})
_LONGEST_TITLE: Final = 200


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation.

    Attributes:
        level: How it is marked.
        title: Its heading.
        lines: What it says, line by line.
        path: The file that it is about, as the document gives it; None where it is about none.
        line: From 1; None for the whole file.
        column: From 1.
        end_line: Where it ends.
        end_column: First column after it.
    """

    level: Level
    title: str
    lines: tuple[str, ...]
    path: str | None = None
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None


def commands(annotations: Iterable[Annotation]) -> Iterator[str]:
    """The lines to print: at most ten annotations a level, worst first, and how many there are beyond these."""
    taken: Counter[Level] = Counter()
    for annotation in sorted(annotations, key=lambda found: _LEVELS.index(found.level)):
        taken[annotation.level] += 1
        if taken[annotation.level] <= MOST_OF_A_KIND:
            yield command(annotation)
    beyond = [count(taken[level] - MOST_OF_A_KIND, level) for level in _LEVELS if taken[level] > MOST_OF_A_KIND]
    if beyond:
        yield f"Not annotated, since GitHub shows {MOST_OF_A_KIND} of a kind: {', '.join(beyond)} more."


def command(annotation: Annotation) -> str:
    """One annotation as the command that makes it, without a newline."""
    properties = ",".join(f"{name}={escaped_property(value)}" for name, value in _properties(annotation))
    text = "\n".join(visible(line) for line in annotation.lines if line)
    return f"::{annotation.level} {properties}::{escaped_data(text)}"


def _properties(annotation: Annotation) -> Iterator[tuple[str, str]]:
    if annotation.path is not None:
        yield "file", visible(repository_path(annotation.path))
    if annotation.path is not None and annotation.line is not None:
        yield from ((name, str(number)) for name, number in _place(annotation) if number is not None)
    yield "title", visible(annotation.title, _LONGEST_TITLE)


def _place(annotation: Annotation) -> list[tuple[str, int | None]]:
    lines = [("line", annotation.line), ("endLine", annotation.end_line)]
    # Columns may only be given where the annotation stays in one line.
    if annotation.end_line not in (None, annotation.line):
        return lines
    return [*lines, ("col", annotation.column), ("endColumn", annotation.end_column)]


def escaped_data(text: str) -> str:
    """Text as the data of a command."""
    return text.translate(_DATA)


def escaped_property(text: str) -> str:
    """Text as the value of a command's property."""
    return text.translate(_PROPERTY)
