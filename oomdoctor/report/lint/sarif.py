"""Lint's findings as SARIF, for code scanning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.issues import repository_path
from oomdoctor.report.lint import sentences
from oomdoctor.report.plain_text import visible
from oomdoctor.report.sarif import Notice, Place, Region, Result, Rule, Run, log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.output import Terminal
    from oomdoctor.results import Finding, LintDocument, Unreadable


_LONGEST_IDENTITY: Final = 1000


def render(document: LintDocument, terminal: Terminal) -> str:
    """Render every finding as a result of SARIF 2.1.0."""
    del terminal
    result = document.result
    properties: dict[str, object] = {"files": result.files, "lines": result.lines, "suppressed": result.suppressed}
    run = Run(
        rules=_rules(result.findings),
        results=map(_result, result.findings),
        notices=[_notice(found) for found in result.unreadable],
        properties={**properties, "rules": [visible(code) for code in result.rules]},
    )
    return log(document, run)


def _rules(findings: Iterable[Finding]) -> list[Rule]:
    """The rules that fired, each by its worst finding."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        held = worst.get(finding.code)
        if held is None or sentences.WORST_FIRST.index(finding.severity) < sentences.WORST_FIRST.index(held.severity):
            worst[finding.code] = finding
    return [_rule(worst[code]) for code in sorted(worst)]


def _rule(finding: Finding) -> Rule:
    more = f"`oomdoctor rule {finding.code}` says what it looks for and why."
    return Rule(finding.code, finding.name, more, finding.severity.value, ("pytorch", finding.concern.value))


def _result(finding: Finding) -> Result:
    where = f"{sentences.in_file(finding)}: " if finding.cell is not None else ""
    region = Region(finding.line, finding.column, finding.end_line, finding.end_column, finding.source)
    return Result(
        rule=finding.code,
        level=finding.severity.value,
        lines=(f"{where}{finding.message}", f"help: {finding.help}" if finding.help else ""),
        place=Place(finding.path, None if finding.cell is not None else region, finding.function),
        identity=(repository_path(finding.path), finding.function or "", _spaced_once(finding.source)),
    )


def _spaced_once(line: str) -> str:
    """A line of code however it is indented, and no more of an endless one than tells it from others."""
    return " ".join(line[:_LONGEST_IDENTITY].split())


def _notice(found: Unreadable) -> Notice:
    known = found.line is not None and found.cell is None
    region = Region(found.line, found.column) if known and found.line is not None else None
    where = f"{sentences.in_file(found)}: " if found.cell is not None else ""
    return Notice("error", f"{where}{sentences.unread(found)}", Place(found.path, region))
