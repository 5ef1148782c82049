"""Lint's findings as JUnit's XML: a suite a file, a case a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.junit import Case, Suite, report
from oomdoctor.report.lint import sentences
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, LintResult, Unreadable


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render findings as failures, notes as cases that passed, and files that were not linted as errors."""
    del terminal
    return report("oomdoctor lint", list(_suites(document)))


def _suites(document: LintDocument) -> Iterator[Suite]:
    result = document.result
    for path, findings in sentences.by_file(result.findings):
        yield Suite(path, [_case(finding) for finding in findings])
    if result.unreadable:
        yield Suite("not linted", [_error(found) for found in result.unreadable])
    whole = Case("all files", "oomdoctor.lint", message=sentences.summary(result))
    yield Suite("oomdoctor lint", [whole], _properties(document, result))


def _properties(document: LintDocument, result: LintResult) -> list[tuple[str, str]]:
    numbers = {"files": result.files, "lines": result.lines, "suppressed": result.suppressed, "fixed": result.fixed}
    shown = {"status": document.status, **numbers, "rules": " ".join(result.rules), **document.versions}
    return [(name, str(value)) for name, value in shown.items()]


def _case(finding: Finding) -> Case:
    body = "\n".join(
        filter(None, (sentences.place(finding), visible(finding.source.strip()), f"help: {visible(finding.help)}"))
    )
    return Case(
        name=f"{finding.code} {finding.name} at {sentences.in_file(finding)}",
        group=finding.path,
        outcome=sentences.OUTCOME[finding.severity],
        kind=finding.code,
        message=finding.message,
        body=body,
    )


def _error(found: Unreadable) -> Case:
    return Case(sentences.place(found), found.path, "error", "unreadable", found.problem)
