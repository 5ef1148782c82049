"""A probe's answer as SARIF."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import sentence
from oomdoctor.report.probe import issues, sentences
from oomdoctor.report.sarif import Notice, Place, Result, Rule, Run, log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import ProbeDocument


_NOTHING_FITS: Final = Rule(
    "nothing-fits",
    "No micro-batch fits",
    "Lower the weights' share: a smaller model, bf16, or sharding. `oomdoctor diagnose` of the error says more.",
    "error",
    ("pytorch", "memory"),
)
_ANSWER: Final = Rule(
    "micro-batch",
    "The largest micro-batch that fits",
    "Set the micro-batch and the accumulation steps as the result says.",
    "note",
    ("pytorch", "memory"),
)
_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {"nothing_fits": _NOTHING_FITS, "fits": _ANSWER, "limited": _ANSWER}
)


def render(document: ProbeDocument, terminal: Terminal) -> str:
    """Render the answer as a note of SARIF 2.1.0, or as an error where nothing fits."""
    del terminal
    result, rule = document.result, _RULES[document.status]
    path = issues.path(result)
    found = Result(
        rule=rule.id,
        level=rule.level,
        lines=issues.lines(result),
        place=Place(path, name=result.target),
        identity=("" if path is None else repository_path(path), result.target),
    )
    notices = [Notice("warning", sentence(text)) for text in sentences.warnings(result)]
    sizes: dict[str, object] = {
        "maximum": result.micro_batch.maximum,
        "recommended": result.micro_batch.recommended,
        "capacity_bytes": result.capacity_bytes,
    }
    return log(document, Run([rule], [found], notices, sizes))
