"""The issue that a probe's answer is: a note, or an error where nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.plain_text import first_line, sentence
from oomdoctor.report.probe import sentences
from oomdoctor.report.probe.plan import plan_heading, plan_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import ProbeDocument, ProbeResult

_TITLE: Final = "oomdoctor probe"
_NOTHING_FITS: Final = IssueKind(
    "nothing-fits",
    "No micro-batch fits",
    "Lower the weights' share: a smaller model, bf16, or sharding. `oomdoctor diagnose` of the error says more.",
    "error",
)
_ANSWER: Final = IssueKind(
    "micro-batch",
    "The largest micro-batch that fits",
    "Set the micro-batch and the accumulation steps as the result says.",
    "note",
)


def issues(document: ProbeDocument) -> Issues:
    """Return the answer, and a warning for each thing to know before relying on it."""
    result = document.result
    failed, path = not result.micro_batch.maximum, target_file(result.target)
    rule = _NOTHING_FITS if failed else _ANSWER
    lines = tuple(_lines(result))
    answer = Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=lines,
        location=Location(path, name=result.target),
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target),
        case=Case(
            name="a micro-batch fits",
            group=result.target,
            kind=document.status,
            message=lines[0],
            body="\n".join(lines if failed else lines[1:]),
        ),
    )
    warnings = [Issue("warning", _TITLE, (sentence(text),), Location(path)) for text in sentences.warnings(result)]
    sizes: dict[str, object] = {
        "maximum": result.micro_batch.maximum,
        "recommended": result.micro_batch.recommended,
        "capacity_bytes": result.capacity_bytes,
    }
    return Issues(
        headline=sentence(sentences.headline(result)),
        groups=[Group(result.target, [answer, *warnings], _properties(document))],
        rules=[rule],
        properties=sizes,
    )


def _lines(result: ProbeResult) -> Iterator[str]:
    """Yield the answer in sentences of a line each: the headline, what belongs to it, the plan, or the error."""
    yield sentence(sentences.headline(result))
    if (shortfall := sentences.shortfall(result)) is not None:
        yield sentence(shortfall)
    yield from (f"{name}: {text}" for name, text in sentences.answer_rows(result))
    rows = plan_rows(result) if result.command_plan else plan_rows(result)[:1]
    if rows:
        yield f"{plan_heading(result)}: {'; '.join(f'{typed}, {effect}' for _, typed, effect in rows)}"
    yield f"{result.device.name}, {sentences.capacity(result)}, {sentences.HOW_KNOWN[result.device.kind]}"
    trial = sentences.failing_trial(result)
    if not result.micro_batch.maximum and trial is not None and (error := first_line(trial.error or "")):
        yield error


def _properties(document: ProbeDocument) -> dict[str, object]:
    result, plan = document.result, document.result.accumulation
    steps = {} if plan is None else {"steps": plan.steps, "effective_batch": plan.effective_batch}
    return {
        "status": document.status,
        "maximum": result.micro_batch.maximum,
        "recommended": result.micro_batch.recommended,
        **steps,
        "capacity_bytes": result.capacity_bytes,
        "device": result.device.name,
        **(result.variant.sizes if result.variant else {}),
        "precision": result.precision,
        "optimizer": result.optimizer,
        **document.versions,
    }
