"""The issues that lint found: a group a file, and the files that were not linted."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.issues import Case, Group, Issue, Issues, Location, Rule, repository_path
from oomdoctor.report.lint import sentences
from oomdoctor.report.plain_text import visible
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oomdoctor.report.issues import Level
    from oomdoctor.results import Finding, LintDocument, LintResult, Unreadable

_LEVELS: Final[Mapping[Severity, Level]] = MappingProxyType(
    {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
)
_LONGEST_IDENTITY: Final = 1000


def issues(document: LintDocument) -> Issues:
    """Return each finding and each file that was not linted."""
    result = document.result
    return Issues(
        headline=sentences.summary(result),
        groups=list(_groups(document, result)),
        rules=_rules(result.findings),
        properties={**_numbers(result), "rules": [visible(code) for code in result.rules]},
    )


def _groups(document: LintDocument, result: LintResult) -> Iterator[Group]:
    for path, findings in sentences.by_file(result.findings):
        yield Group(path, [_issue(finding) for finding in findings])
    if result.unreadable:
        yield Group("not linted", [_unreadable(found) for found in result.unreadable])
    whole = Issue("passed", case=Case("all files", "oomdoctor.lint", message=sentences.summary(result)))
    about = {"status": document.status, **_numbers(result), "fixed": result.fixed, "rules": " ".join(result.rules)}
    yield Group("oomdoctor lint", [whole], {**about, **document.versions})


def _numbers(result: LintResult) -> dict[str, int]:
    return {"files": result.files, "lines": result.lines, "suppressed": result.suppressed}


def _rules(findings: Iterable[Finding]) -> list[Rule]:
    """Return the rules that fired, each by its worst finding."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        held = worst.get(finding.code)
        if held is None or sentences.WORST_FIRST.index(finding.severity) < sentences.WORST_FIRST.index(held.severity):
            worst[finding.code] = finding
    return [_rule(worst[code]) for code in sorted(worst)]


def _rule(finding: Finding) -> Rule:
    more = f"`oomdoctor rule {finding.code}` says what it looks for and why."
    return Rule(finding.code, finding.name, more, _LEVELS[finding.severity], ("pytorch", finding.concern.value))


def _issue(finding: Finding) -> Issue:
    where, source = sentences.place(finding), visible(finding.source.strip())
    return Issue(
        level=_LEVELS[finding.severity],
        title=f"{finding.code} {finding.name}",
        lines=(finding.message, f"help: {finding.help}" if finding.help else ""),
        location=Location(
            path=finding.path,
            line=finding.line,
            column=finding.column,
            end_line=finding.end_line,
            end_column=finding.end_column,
            snippet=finding.source,
            name=finding.function,
            cell=_cell(finding),
        ),
        rule=finding.code,
        identity=(repository_path(finding.path), finding.function or "", _spaced_once(finding.source)),
        case=Case(
            name=f"{finding.code} {finding.name} at {sentences.in_file(finding)}",
            group=finding.path,
            kind=finding.code,
            message=finding.message,
            body="\n".join(filter(None, (where, source, f"help: {visible(finding.help)}"))),
        ),
    )


def _cell(found: Finding | Unreadable) -> str | None:
    return None if found.cell is None else sentences.in_file(found)


def _spaced_once(line: str) -> str:
    """Return a line of code however it is indented, and no more of an endless one than tells it from others."""
    return " ".join(line[:_LONGEST_IDENTITY].split())


def _unreadable(found: Unreadable) -> Issue:
    return Issue(
        level="error",
        title=sentences.NOT_LINTED,
        subject=sentences.NOT_LINTED,
        lines=(found.problem,),
        location=Location(found.path, found.line, found.column, cell=_cell(found)),
        case=Case(sentences.place(found), found.path, "unreadable", found.problem),
    )
