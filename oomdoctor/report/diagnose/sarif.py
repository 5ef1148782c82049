"""A diagnosis as SARIF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.diagnose.issues import Shortage, place, shortages
from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import capitalised, sentence
from oomdoctor.report.sarif import Place, Region, Result, Rule, Run, log
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import DiagnosisDocument, DiagnosisResult


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render each place where memory ran out as a result of SARIF 2.1.0; where none did there is no result."""
    del terminal
    found = shortages(document)
    rules = [_rule(found[0], document.result)] if found else []
    properties: dict[str, object] = {"headline": sentences.headline(document), "device": document.result.device}
    return log(document, Run(rules, map(_result, found), properties=properties))


def _rule(found: Shortage, result: DiagnosisResult) -> Rule:
    changes = [f"- {sentence(remedy.change)}{_frees(remedy.frees_bytes)}" for remedy in result.remedies]
    text = "\n".join(changes) or "`oomdoctor diagnose` says what to collect to learn more."
    return Rule(
        found.cause.value, capitalised(sentences.CAUSE_WORDS[found.cause]), text, "error", ("pytorch", "memory")
    )


def _frees(size_bytes: int | None) -> str:
    return f" Frees up to {format_size(size_bytes)}." if size_bytes else ""


def _result(found: Shortage) -> Result:
    path, line = place(found) or (None, None)
    name, code = (found.line.function, found.line.code) if found.line is not None else (None, None)
    region = None if line is None else Region(line, snippet=code)
    related: tuple[tuple[Place, str], ...] = ()
    if found.error is not None and found.line is not None:
        at = None if found.error.line is None else Region(found.error.line)
        related = ((Place(found.error.source, at), found.message),)
    return Result(
        rule=found.cause.value,
        level="error",
        lines=found.lines,
        place=Place(path, region, name),
        identity=("" if path is None else repository_path(path), name or "", (code or found.message).strip()),
        related=related,
    )
