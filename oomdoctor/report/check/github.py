"""A check as annotations of GitHub Actions, each at its target's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.check import issues, sentences
from oomdoctor.report.github import Annotation, commands
from oomdoctor.report.plain_text import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult


def render(document: CheckDocument, terminal: Terminal) -> str:
    """Render problems and broken limits as a runner's commands, worst first, and the sum as a line of its own."""
    del terminal
    result = document.result
    found = [annotation for entry in sentences.ordered(result) for annotation in _annotations(result, entry)]
    return "\n".join([*commands(found), sentence(sentences.headline(result))]) + "\n"


def _annotations(result: CheckResult, entry: CheckedEntry) -> Iterator[Annotation]:
    path, title = issues.path(result, entry), f"oomdoctor check {entry.name}"
    if entry.problem is not None:
        yield Annotation("error", title, issues.problem_lines(entry), path)
    for limit in sentences.broken(entry):
        yield Annotation("error", f"{title}: {limit.name.value}", issues.limit_lines(entry, limit), path)
    for text in sentences.warnings(entry):
        yield Annotation("warning", title, (sentence(text),), path)
    if not sentences.beyond(entry) and (moved := issues.within_lines(entry)):
        yield Annotation("notice", f"{title}: {sentences.within_title(entry)}", moved, path)
