"""Lint's findings as annotations of GitHub Actions."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.github import Annotation, Level, commands
from oomdoctor.report.lint import sentences
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, Unreadable


_LEVELS: Final[Mapping[Severity, Level]] = MappingProxyType(
    {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
)


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render the worst findings as a runner's commands, and the sum of all as a line of its own."""
    del terminal
    result = document.result
    annotations = [*map(_finding, result.findings), *map(_unreadable, result.unreadable)]
    return "\n".join([*commands(annotations), sentences.summary(result)]) + "\n"


def _finding(found: Finding) -> Annotation:
    title = f"{found.code} {found.name}"
    help_line = f"help: {found.help}" if found.help else ""
    if found.cell is not None:
        # A line of a cell is no line of the file.
        return Annotation(
            _LEVELS[found.severity], title, (f"{sentences.in_file(found)}: {found.message}", help_line), found.path
        )
    return Annotation(
        _LEVELS[found.severity],
        title,
        (found.message, help_line),
        found.path,
        found.line,
        found.column,
        found.end_line,
        found.end_column,
    )


def _unreadable(found: Unreadable) -> Annotation:
    if found.cell is not None:
        return Annotation("error", "not linted", (f"{sentences.in_file(found)}: {found.problem}",), found.path)
    return Annotation("error", "not linted", (found.problem,), found.path, found.line, found.column)
