"""A diagnosis as JUnit's XML: a case that fails where memory ran out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.diagnose.issues import Shortage, place, shortages, why
from oomdoctor.report.junit import Case, Suite, report

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import DiagnosisDocument


_GROUP = "oomdoctor.diagnose"


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render each place where memory ran out as a failure, or one case that passed."""
    del terminal
    headline = sentences.headline(document)
    passed = Case("memory", _GROUP, message=headline, body="\n".join(why(document.result)))
    cases = [_case(found) for found in shortages(document)] or [passed]
    suite = Suite(sentences.sources(document.result) or "nothing", cases, _properties(document))
    return report("oomdoctor diagnose", [suite])


def _case(found: Shortage) -> Case:
    path, line = place(found) or ("memory", None)
    name = path if line is None else f"{path}:{line}"
    body = "\n".join(filter(None, (*found.lines, found.message)))
    return Case(name, _GROUP, "failure", found.cause.value, found.lines[0], body)


def _properties(document: DiagnosisDocument) -> list[tuple[str, str]]:
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
    return [(name, str(value)) for name, value in shown.items() if value is not None]
