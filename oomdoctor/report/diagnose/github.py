"""A diagnosis as annotations of GitHub Actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.diagnose.issues import Shortage, change, place, shortages, why
from oomdoctor.report.github import Annotation, commands

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import DiagnosisDocument


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render an error at each place where memory ran out, or a notice with what was found instead."""
    del terminal
    found = [_error(shortage) for shortage in shortages(document)] or [_notice(document)]
    return "\n".join([*commands(found), f"{sentences.headline(document)}."]) + "\n"


def _error(shortage: Shortage) -> Annotation:
    path, line = place(shortage) or (None, None)
    return Annotation("error", "oomdoctor: out of memory", shortage.lines, path, line)


def _notice(document: DiagnosisDocument) -> Annotation:
    lines = (f"{sentences.headline(document)}.", *why(document.result), *change(document.result))
    return Annotation("notice", "oomdoctor diagnose", lines)
