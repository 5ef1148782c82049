"""A check as JUnit's XML: a suite an entry, a case a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.check import issues, sentences
from oomdoctor.report.junit import Case, Suite, report
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult, Limit, Problem


def render(document: CheckDocument, terminal: Terminal) -> str:
    """Render broken limits as failures, entries without an answer as errors, and the sum as a case that passed."""
    del terminal
    result = document.result
    suites = [Suite(entry.name, list(_cases(entry)), _properties(entry)) for entry in sentences.ordered(result)]
    whole = Case("all entries", "oomdoctor.check", message=sentences.headline(result))
    return report("oomdoctor check", [*suites, Suite("oomdoctor check", [whole], _whole(document, result))])


def _cases(entry: CheckedEntry) -> Iterator[Case]:
    if entry.problem is not None:
        yield _error(entry, entry.problem)
    for limit in entry.limits:
        yield _passed(entry, limit) if limit.holds else _failure(entry, limit)


def _error(entry: CheckedEntry, problem: Problem) -> Case:
    details = (problem.details or "").splitlines()
    body = _joined([*issues.problem_lines(entry), *details])
    return Case("answer", entry.name, "error", entry.verdict.value, problem.message, body)


def _failure(entry: CheckedEntry, limit: Limit) -> Case:
    body = _joined(issues.limit_lines(entry, limit))
    return Case(limit.name.value, entry.name, "failure", limit.name.value, limit.text, body)


def _passed(entry: CheckedEntry, limit: Limit) -> Case:
    return Case(limit.name.value, entry.name, message=visible(limit.text))


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(visible(line) for line in lines if line)


def _properties(entry: CheckedEntry) -> list[tuple[str, str]]:
    shown = {
        "verdict": entry.verdict.value,
        "target": entry.target,
        "gpu": entry.gpu,
        "maximum": sentences.largest(entry),
        "steps": sentences.steps(entry),
        "profiled_micro_batch": entry.profiled_micro_batch,
        "baseline": entry.baseline,
        "tolerance": entry.tolerance,
    }
    return [(name, str(value)) for name, value in shown.items() if value not in (None, "-")]


def _whole(document: CheckDocument, result: CheckResult) -> list[tuple[str, str]]:
    shown = {"status": document.status, "configuration": result.configuration, **document.versions}
    return list(shown.items())
