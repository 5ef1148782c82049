"""The issues that a diagnosis found: each place where memory ran out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path
from oomdoctor.report.plain_text import capitalised, first_line, sentence, shortened
from oomdoctor.results import CauseId
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.results import DiagnosisDocument, DiagnosisResult, Occurrence, SourceLine

_GROUP: Final = "oomdoctor.diagnose"


def issues(document: DiagnosisDocument) -> Issues:
    """Return each place where memory ran out, the one that counts first, or a note with what was found instead."""
    result, headline = document.result, sentences.headline(document)
    found = list(_shortages(document)) if result.is_oom else [_note(document)]
    return Issues(
        headline=f"{headline}.",
        groups=[Group(sentences.sources(result) or "nothing", found, _properties(document))],
        rules=[_rule(result)] if result.is_oom else [],
        properties={"headline": headline, "device": result.device},
    )


def _cause(result: DiagnosisResult) -> CauseId:
    return result.causes[0].id if result.causes else CauseId.UNKNOWN


def _rule(result: DiagnosisResult) -> IssueKind:
    cause = _cause(result)
    changes = [f"- {sentence(remedy.change)}{_frees(remedy.frees_bytes)}" for remedy in result.remedies]
    text = "\n".join(changes) or "`oomdoctor diagnose` says what to collect to learn more."
    return IssueKind(cause.value, capitalised(sentences.CAUSE_WORDS[cause]), text, "error")


def _frees(size_bytes: int | None) -> str:
    return f" Frees up to {format_size(size_bytes)}." if size_bytes else ""


def _note(document: DiagnosisDocument) -> Issue:
    headline, why = sentences.headline(document), list(_why(document.result))
    lines = (f"{headline}.", *why, *_change(document.result))
    case = Case("memory", _GROUP, message=headline, body="\n".join(why))
    return Issue("note", "oomdoctor diagnose", lines, case=case)


# --- places where memory ran out -------------------------------------------------------------------------------------


def _shortages(document: DiagnosisDocument) -> Iterator[Issue]:
    result = document.result
    errors = [found for found in result.occurrences if found.is_oom]
    first = errors[0] if errors else None
    yield _shortage(result, tuple(_lines(document)), result.facts.user_line, first)
    seen = {_key(result.facts.user_line, first)}
    for error in errors[1:]:
        key = _key(error.facts.user_line, error)
        if key not in seen:
            seen.add(key)
            said = (sentence(sentences.occurrence(error)), f"({sentences.origin(error)})")
            yield _shortage(result, said, error.facts.user_line, error)


def _key(line: SourceLine | None, error: Occurrence | None) -> tuple[str, int | None]:
    """Return what tells one place from another; ranks that die in the same line die in one place."""
    if line is not None:
        return line.path, line.line
    return ("", None) if error is None else (error.source, error.line)


def _shortage(
    result: DiagnosisResult, lines: tuple[str, ...], line: SourceLine | None, error: Occurrence | None
) -> Issue:
    """Return the issue of one place: the user's own line, or the error's line in what was read."""
    cause, message = _cause(result).value, "" if error is None else first_line(error.message)
    at_error = Location() if error is None else Location(error.source, error.line)
    location = at_error if line is None else Location(line.path, line.line, snippet=line.code, name=line.function)
    path = location.path or "memory"
    identity = ("" if location.path is None else repository_path(path), location.name or "")
    return Issue(
        level="error",
        title="oomdoctor: out of memory",
        lines=lines,
        location=location,
        rule=cause,
        identity=(*identity, (location.snippet or message).strip()),
        related=((at_error, message),) if error is not None and line is not None else (),
        case=Case(
            name=path if location.line is None else f"{path}:{location.line}",
            group=_GROUP,
            kind=cause,
            message=lines[0],
            body="\n".join(filter(None, (*lines, message))),
        ),
    )


def _lines(document: DiagnosisDocument) -> Iterator[str]:
    result = document.result
    yield sentence(sentences.headline(document))
    if (numbers := sentences.summary(result)) is not None:
        yield sentence(numbers)
    yield from _why(result)
    yield from _change(result)


def _why(result: DiagnosisResult) -> Iterator[str]:
    """Yield the causes in a sentence each, at most three."""
    for cause in result.causes[:3]:
        yield f"{capitalised(sentences.cause(cause))}: {shortened(cause.evidence)}"


def _change(result: DiagnosisResult) -> Iterator[str]:
    """Yield what to change first."""
    for remedy in result.remedies[:1]:
        how = f" ({remedy.how})" if remedy.how else ""
        yield f"help: {capitalised(remedy.change)}{how}"


def _properties(document: DiagnosisDocument) -> Mapping[str, object]:
    result, facts = document.result, document.result.facts
    shown = {
        "status": document.status,
        "device": result.device,
        "causes": " ".join(cause.id.value for cause in result.causes),
        "tried_bytes": facts.tried_bytes,
        "free_bytes": facts.free_bytes,
        "total_bytes": facts.total_bytes,
        "allocated_bytes": facts.allocated_bytes,
        **document.versions,
    }
    return {name: value for name, value in shown.items() if value is not None}
