"""Issues: what a document found, as every format that lists issues in files shows it.

The `issues.py` of each document's folder makes them; `github`, `junit` and `sarif` write them and know no command.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Level: TypeAlias = Literal["error", "warning", "note", "passed"]
"""How bad an issue is; one that passed is a case of a test report and nothing else."""

_LONGEST_PATH: Final = 4096  # no system has longer ones; a saved document may contain any text


@dataclass(frozen=True, slots=True)
class Location:
    """A location: part of a file, or a name where there is no file.

    Attributes:
        path: The file as the document gives it; None where there is none.
        line: From 1; None for all of the file.
        column: From 1, in characters.
        end_line: Where it ends.
        end_column: First column after it.
        snippet: The text of the line.
        name: What it is in, such as a function or a reference to a model.
        cell: For a notebook, where in its cells it is, such as `cell 3, 12:9`; its lines are no lines of the file.
    """

    path: str | None = None
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    snippet: str | None = None
    name: str | None = None
    cell: str | None = None


@dataclass(frozen=True, slots=True)
class IssueKind:
    """The kind of an issue.

    Attributes:
        id: Stable identifier.
        name: Words for it.
        help: What to do about it.
        level: How bad it is in general.
        tags: Keywords.
    """

    id: str
    name: str
    help: str
    level: Level
    tags: tuple[str, ...] = ("pytorch", "memory")


@dataclass(frozen=True, slots=True)
class Case:
    """An issue as a case of a test report.

    Attributes:
        name: What was looked at.
        group: What it belongs to; tools show it as a class.
        kind: What sort of failure.
        message: The failure in one line; for one that passed, what it says.
        body: The failure at length.
    """

    name: str
    group: str
    kind: str = ""
    message: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that was found.

    Attributes:
        level: How bad it is.
        title: Its heading.
        lines: What it says, line by line.
        location: Where it is.
        subject: What it is about, for formats that show no title.
        rule: Identifier of its rule; None where it says something about the run, such as a file that could not be read.
        identity: What it is about, without line numbers, so that it is known again when lines move.
        related: Other locations and what they are.
        case: The case of a test report; None where it is none.
    """

    level: Level
    title: str = ""
    lines: tuple[str, ...] = ()
    location: Location = Location()
    subject: str = ""
    rule: str | None = None
    identity: tuple[str, ...] = ()
    related: tuple[tuple[Location, str], ...] = ()
    case: Case | None = None

    def text_lines(self, *, with_subject: bool = False) -> tuple[str, ...]:
        """Return the lines, of which the first begins with the cell of a notebook and, if asked for, the subject."""
        about = (self.location.cell, self.subject if with_subject else None)
        return ("".join(f"{part}: " for part in about if part) + self.lines[0], *self.lines[1:])


@dataclass(frozen=True, slots=True)
class Group:
    """Issues that belong together, and what is known about all of them."""

    name: str
    issues: Sequence[Issue]
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Issues:
    """All that a document found.

    Attributes:
        headline: The summary in one sentence.
        groups: The issues, worst first where the format does not order them.
        rules: The rules of the issues.
        properties: What else is known about the run.
    """

    headline: str
    groups: Sequence[Group]
    rules: Sequence[IssueKind] = ()
    properties: Mapping[str, object] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Issue]:
        """Yield each issue, those that passed left out."""
        return (issue for group in self.groups for issue in group.issues if issue.level != "passed")


# --- paths -----------------------------------------------------------------------------------------------------------


def target_file(target: str) -> str | None:
    """Return the file of a reference such as `train/model.py:build(depth=2)`; None for a module or an example."""
    file, ending, rest = target.partition(".py")
    return f"{file}{ending}" if ending and rest[:1] in ("", ":") else None


def repository_path(path: str) -> str:
    """Return a path from the root of the repository that the working directory lies in.

    GitHub puts annotations and results at paths from there, wherever the command ran.

    Args:
        path: A file's path, absolute or from the working directory, as a report gives it.

    Returns:
        The path from the root; an absolute one that does not lie below it as it is.
    """
    working = os.getcwd()  # noqa: PTH109 - no link is followed, as for the paths themselves
    return _from_root(path[:_LONGEST_PATH], working, os.environ.get("GITHUB_WORKSPACE", ""))


@cache
def _from_root(path: str, working: str, workspace: str) -> str:
    whole, root = os.path.normpath(os.path.join(working, path)), _root(working, workspace)  # noqa: PTH118 - texts, not files
    if whole.startswith(root.rstrip(os.sep) + os.sep):
        return os.path.relpath(whole, root).replace(os.sep, "/")
    return whole.replace(os.sep, "/")


@cache
def _root(working: str, workspace: str) -> str:
    """Return the workspace of a job, or the root of the nearest repository, or else the working directory."""
    here = Path(working)
    if workspace and here.is_relative_to(workspace):
        return os.path.normpath(workspace)
    return str(next((place for place in (here, *here.parents) if (place / ".git").exists()), here))
