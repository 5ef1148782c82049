"""The issues that a check found: a group an entry, each at its target's file."""

from __future__ import annotations

from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.check import sentences
from oomdoctor.report.issues import Case, Group, Issue, Issues, Location, Rule, repository_path, target_file
from oomdoctor.report.plain_text import sentence, visible
from oomdoctor.results import LimitName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult, Limit, Movement, Problem

_MOST_MOVEMENTS: Final = 10
_PROBE: Final = "`oomdoctor probe` of the same target shows where its memory is; `oomdoctor lint` finds what wastes it."
_HELP: Final[Mapping[LimitName, str]] = MappingProxyType(
    {
        **dict.fromkeys(LimitName, _PROBE),
        LimitName.BASELINE: f"Undo what grew, or take it for the baseline with `{sentences.UPDATE}`.",
    }
)


def issues(document: CheckDocument) -> Issues:
    """Return each problem, each limit and each warning, the worst entry first."""
    result = document.result
    entries = sentences.ordered(result)
    broken = {limit.name for entry in entries for limit in sentences.broken(entry)}
    headline = sentences.headline(result)
    whole = Issue("passed", case=Case("all entries", "oomdoctor.check", message=headline))
    about = {"status": document.status, "configuration": result.configuration, **document.versions}
    return Issues(
        headline=sentence(headline),
        groups=[*(_group(result, entry) for entry in entries), Group("oomdoctor check", [whole], about)],
        rules=[_rule(name) for name in LimitName if name in broken],
        properties={"entries": len(entries), "headline": headline},
    )


def _rule(name: LimitName) -> Rule:
    return Rule(name.value, sentences.LIMIT_WORDS[name], _HELP[name], "error")


def _group(result: CheckResult, entry: CheckedEntry) -> Group:
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
    properties = {name: value for name, value in shown.items() if value not in (None, "-")}
    return Group(entry.name, list(_issues(result, entry)), properties)


def _issues(result: CheckResult, entry: CheckedEntry) -> Iterator[Issue]:
    location, title = Location(_path(result, entry), name=entry.target), f"oomdoctor check {entry.name}"
    subject = sentences.name(entry)
    if entry.problem is not None:
        yield _problem(entry, entry.problem, title, location)
    yield from (_limit(entry, limit, title, location) for limit in entry.limits)
    for text in sentences.warnings(entry):
        yield Issue("warning", title, (sentence(text),), location, subject)
    if not sentences.beyond(entry) and (moved := tuple(_listed(sentences.within(entry)))):
        yield Issue("note", f"{title}: {sentences.within_title(entry)}", moved, location)


def _path(result: CheckResult, entry: CheckedEntry) -> str | None:
    """Return the target's file from the working directory; the configuration for a module or an example."""
    file = target_file(entry.target)
    if file is None:
        return result.configuration or None
    # Targets are given from the folder of the configuration.
    return str(PurePath(result.configuration).parent / file)


def _problem(entry: CheckedEntry, problem: Problem, title: str, location: Location) -> Issue:
    help_lines = (problem.hint or "").splitlines()
    lines = (sentence(problem.message), *(f"help: {line}" for line in help_lines[:1]), *help_lines[1:])
    body = _joined([*lines, *(problem.details or "").splitlines()])
    case = Case("answer", entry.name, entry.verdict.value, problem.message, body)
    return Issue("error", title, lines, location, sentences.name(entry), case=case)


def _limit(entry: CheckedEntry, limit: Limit, title: str, location: Location) -> Issue:
    name = limit.name.value
    if limit.holds:
        return Issue("passed", case=Case(name, entry.name, message=visible(limit.text)))
    lines, path = tuple(_limit_lines(entry, limit)), location.path
    return Issue(
        level="error",
        title=f"{title}: {name}",
        lines=lines,
        location=location,
        subject=sentences.name(entry),
        rule=name,
        identity=("" if path is None else repository_path(path), entry.name),
        case=Case(name, entry.name, name, limit.text, _joined(lines)),
    )


def _limit_lines(entry: CheckedEntry, limit: Limit) -> Iterator[str]:
    """Yield a broken limit's sentence, and the figures that moved where it is the baseline, else the probe's answer."""
    yield sentence(limit.text)
    if limit.name is not LimitName.BASELINE:
        yield from (sentence(found) for found in [sentences.answer(entry)] if found)
    elif moved := list(_listed(sentences.beyond(entry))):
        yield from (*moved, f"help: `{sentences.UPDATE}` writes it to the baseline, if it is intended")


def _listed(movements: Sequence[Movement]) -> Iterator[str]:
    shown, more = sentences.first(movements, _MOST_MOVEMENTS)
    yield from (movement.text for movement in shown)
    if more:
        yield more


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(visible(line) for line in lines if line)
