"""A probe's answer for the formats that list issues: annotations, code scanning, test reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.issues import target_file
from oomdoctor.report.plain_text import first_line, sentence
from oomdoctor.report.probe import sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import ProbeResult


def lines(result: ProbeResult) -> tuple[str, ...]:
    """The answer in sentences of a line each: the headline, what belongs to it, the plan, or the error."""
    return tuple(_lines(result))


def _lines(result: ProbeResult) -> Iterator[str]:
    yield sentence(sentences.headline(result))
    if (shortfall := sentences.shortfall(result)) is not None:
        yield sentence(shortfall)
    yield from (f"{name}: {text}" for name, text in sentences.answer_rows(result))
    if result.accumulation is not None:
        for _, typed, effect in sentences.plan_rows(result)[:1]:
            yield f"{sentences.plan_title(result.accumulation)}: {typed}, {effect}"
    yield f"{result.device.name}, {sentences.capacity(result)}, {sentences.HOW_KNOWN[result.device.kind]}"
    trial = sentences.failing_trial(result)
    if not result.micro_batch.maximum and trial is not None and (error := first_line(trial.error or "")):
        yield error


def path(result: ProbeResult) -> str | None:
    """The file that was probed; None where a module or an example was."""
    return target_file(result.target)
