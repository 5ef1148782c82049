"""The places where memory ran out, for annotations, code scanning and test reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.plain_text import capitalised, first_line, sentence, shortened
from oomdoctor.results import CauseId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import DiagnosisDocument, DiagnosisResult, Occurrence, SourceLine


@dataclass(frozen=True, slots=True)
class Shortage:
    """Memory that ran out in one place.

    Attributes:
        cause: The likeliest cause.
        lines: What is to be said: the headline, the numbers, why, and what to change.
        line: The user's own line, where it is known.
        error: The error that says so, where there is one.
        message: The error's text in one line; empty where there is none.
    """

    cause: CauseId
    lines: tuple[str, ...]
    line: SourceLine | None
    error: Occurrence | None
    message: str


def shortages(document: DiagnosisDocument) -> list[Shortage]:
    """Each place where memory ran out, the one that counts first; none where something else was found."""
    result = document.result
    if not result.is_oom:
        return []
    errors = [found for found in result.occurrences if found.is_oom]
    cause = result.causes[0].id if result.causes else CauseId.UNKNOWN
    first = errors[0] if errors else None
    message = "" if first is None else first_line(first.message)
    found = [Shortage(cause, tuple(_lines(document)), result.facts.user_line, first, message)]
    seen = {_key(result.facts.user_line, first)}
    for error in errors[1:]:
        key = _key(error.facts.user_line, error)
        if key not in seen:
            seen.add(key)
            said = (sentence(sentences.occurrence(error)), f"({sentences.origin(error)})")
            found.append(Shortage(cause, said, error.facts.user_line, error, first_line(error.message)))
    return found


def _key(line: SourceLine | None, error: Occurrence | None) -> tuple[str, int | None]:
    """Ranks that die in the same line die in one place."""
    if line is not None:
        return line.path, line.line
    return ("", None) if error is None else (error.source, error.line)


def place(found: Shortage) -> tuple[str, int | None] | None:
    """File and line: the user's own where it is known, else those of the error in what was read."""
    if found.line is not None:
        return found.line.path, found.line.line
    return None if found.error is None else (found.error.source, found.error.line)


def _lines(document: DiagnosisDocument) -> Iterator[str]:
    result = document.result
    yield sentence(sentences.headline(document))
    if (numbers := sentences.summary(result)) is not None:
        yield sentence(numbers)
    yield from why(result)
    yield from change(result)


def why(result: DiagnosisResult) -> Iterator[str]:
    """The causes in a sentence each, at most three."""
    for cause in result.causes[:3]:
        yield f"{capitalised(sentences.cause(cause))}: {shortened(cause.evidence)}"


def change(result: DiagnosisResult) -> Iterator[str]:
    """What to change first."""
    for remedy in result.remedies[:1]:
        how = f" ({remedy.how})" if remedy.how else ""
        yield f"help: {capitalised(remedy.change)}{how}"
