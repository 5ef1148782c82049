"""A check as SARIF: a result a broken limit, at its target's file."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.check import issues, sentences
from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import sentence
from oomdoctor.report.sarif import Notice, Place, Result, Rule, Run, log
from oomdoctor.results import LimitName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult, Limit


_PROBE: Final = "`oomdoctor probe` of the same target shows where its memory is; `oomdoctor lint` finds what wastes it."
_HELP: Final[Mapping[LimitName, str]] = MappingProxyType(
    {
        **dict.fromkeys(LimitName, _PROBE),
        LimitName.BASELINE: f"Undo what grew, or take it for the baseline with `{sentences.UPDATE}`.",
    }
)


def render(document: CheckDocument, terminal: Terminal) -> str:
    """Render every broken limit as an error of SARIF 2.1.0; problems and warnings are notices of the run."""
    del terminal
    result = document.result
    entries = sentences.ordered(result)
    found = [_result(result, entry, limit) for entry in entries for limit in sentences.broken(entry)]
    fired = {found_result.rule for found_result in found}
    run = Run(
        rules=[_rule(name) for name in LimitName if name.value in fired],
        results=found,
        notices=[notice for entry in entries for notice in _notices(result, entry)],
        properties={"entries": len(entries), "headline": sentences.headline(result)},
    )
    return log(document, run)


def _rule(name: LimitName) -> Rule:
    return Rule(name.value, sentences.LIMIT_WORDS[name], _HELP[name], "error", ("pytorch", "memory"))


def _result(result: CheckResult, entry: CheckedEntry, limit: Limit) -> Result:
    path = issues.path(result, entry)
    first, *rest = issues.limit_lines(entry, limit)
    return Result(
        rule=limit.name.value,
        level="error",
        lines=(f"{sentences.name(entry)}: {first}", *rest),
        place=Place(path, name=entry.target),
        identity=("" if path is None else repository_path(path), entry.name),
    )


def _notices(result: CheckResult, entry: CheckedEntry) -> Iterator[Notice]:
    place = Place(issues.path(result, entry), name=entry.target)
    if entry.problem is not None:
        yield Notice("error", f"{sentences.name(entry)}: {sentence(entry.problem.message)}", place)
    for text in sentences.warnings(entry):
        yield Notice("warning", f"{sentences.name(entry)}: {sentence(text)}", place)
