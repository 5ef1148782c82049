"""What a check found as annotations of GitHub Actions, each at its target's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.reports.check import places, wording
from oomdoctor.reports.github import Annotation, commands
from oomdoctor.reports.wording import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult


def render(document: CheckDocument, terminal: Terminal) -> str:
    """Render problems and broken limits as a runner's commands, worst first, and the sum as a line of its own."""
    del terminal
    result = document.result
    found = [annotation for entry in wording.ordered(result) for annotation in _annotations(result, entry)]
    return "\n".join([*commands(found), sentence(wording.headline(result))]) + "\n"


def _annotations(result: CheckResult, entry: CheckedEntry) -> Iterator[Annotation]:
    path, title = places.path(result, entry), f"oomdoctor check {entry.name}"
    if entry.problem is not None:
        yield Annotation("error", title, places.problem_lines(entry), path)
    for limit in wording.broken(entry):
        yield Annotation("error", f"{title}: {limit.name.value}", places.limit_lines(entry, limit), path)
    for text in wording.warnings(entry):
        yield Annotation("warning", title, (sentence(text),), path)
    if not wording.beyond(entry) and (moved := places.within_lines(entry)):
        yield Annotation("notice", f"{title}: {wording.within_title(entry)}", moved, path)
