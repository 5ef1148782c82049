"""A probe's answer as JUnit's XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.junit import Case, Suite, report
from oomdoctor.report.probe import issues

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import ProbeDocument


def render(document: ProbeDocument, terminal: Terminal) -> str:
    """Render one case with the answer, failed where nothing fits."""
    del terminal
    result = document.result
    headline, *rest = issues.lines(result)
    failed = document.status == "nothing_fits"
    case = Case(
        "a micro-batch fits",
        result.target,
        "failure" if failed else "passed",
        "nothing_fits" if failed else "",
        headline,
        "\n".join([headline, *rest] if failed else rest),
    )
    return report("oomdoctor probe", [Suite(result.target, [case], _properties(document))])


def _properties(document: ProbeDocument) -> list[tuple[str, str]]:
    result, plan = document.result, document.result.accumulation
    steps = {} if plan is None else {"steps": plan.steps, "effective_batch": plan.effective_batch}
    shown = {
        "status": document.status,
        "maximum": result.micro_batch.maximum,
        "recommended": result.micro_batch.recommended,
        **steps,
        "capacity_bytes": result.capacity_bytes,
        "device": result.device.name,
        "precision": result.precision,
        "optimizer": result.optimizer,
        **document.versions,
    }
    return [(name, str(value)) for name, value in shown.items()]
