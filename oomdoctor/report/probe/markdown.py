"""A probe as GitHub-flavoured Markdown, for issues, comments and job summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.markdown import code, code_block, folded, prose, table
from oomdoctor.report.plain_text import first_line, optional_size, sentence, share
from oomdoctor.report.probe import plan, ranks, sentences, throughput
from oomdoctor.report.probe.lines import memory_lines
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.report.probe.sentences import ModuleRow
    from oomdoctor.results import ProbeDocument, ProbeResult, StepMemory


def render(document: ProbeDocument) -> str:
    """Render a probe's document as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


# --- blocks ----------------------------------------------------------------------------------------------------------


def _blocks(document: ProbeDocument) -> Iterator[str]:
    result = document.result
    yield f"### {sentences.headline(result)}"
    if (shortfall := sentences.shortfall(result)) is not None:
        yield f"{shortfall[:1].upper()}{shortfall[1:]}."
    if warnings := sentences.warnings(result):
        yield "\n".join(["> [!WARNING]", *(f"> - {prose(text)}" for text in warnings)])
    yield _facts(result)
    yield from _plan(result)
    yield from _failure(result)
    if (timed := result.throughput) is not None:
        yield f"**{throughput.title(timed)}**"
        yield table(tuple(f">{name}" for name in throughput.columns(timed)), throughput.rows(timed))
        yield "\n".join(f"- {prose(sentence(note))}" for note in throughput.notes(timed))
    if result.ranks:
        yield f"**{ranks.ranks_title(result)}**"
        yield table(tuple(f">{name}" for name in ranks.RANK_COLUMNS), ranks.rank_rows(result))
        headings, rows = ranks.rank_phases(result)
        if rows:
            yield folded("Phases of the ranks", table((*headings[:2], *(f">{name}" for name in headings[2:])), rows))
    if result.phases:
        yield folded(sentences.phases_title(result), _phases(result))
    if result.memory is not None:
        yield folded(sentences.memory_title(result.memory), "\n\n".join(_memory(result.memory)))
    if result.trials:
        yield folded(sentences.trials_title(result.trials), _trials(result))
    if result.reasons:
        reasons = "\n".join(f"- {code(reason.subject)}: {prose(reason.text)}" for reason in result.reasons)
        yield folded("Where the numbers come from", reasons)
    yield ", ".join(code(f"{name} {version}") for name, version in document.versions.items())


def _facts(result: ProbeResult) -> str:
    device = result.device
    rows = [
        *sentences.answer_rows(result),
        ("target", ", ".join(map(code, sentences.question(result)))),
        ("device", f"{code(device.name)}, compute capability {code(device.compute_capability)}"),
        ("how known", sentences.HOW_KNOWN[device.kind]),
        ("capacity", sentences.capacity(result)),
    ]
    return table(("", ""), rows)


def _plan(result: ProbeResult) -> Iterator[str]:
    heading = plan.plan_heading(result)
    if heading is None:
        return
    yield f"**{heading}**"
    rows = [(name, code(typed), effect) for name, typed, effect in plan.plan_rows(result)]
    yield table(("plan", "set", "which makes"), rows)
    if notes := plan.plan_notes(result):
        yield "\n".join(f"- {note}" for note in notes)


def _failure(result: ProbeResult) -> Iterator[str]:
    trial = sentences.failing_trial(result)
    if trial is not None and (line := first_line(trial.error or "")):
        yield f"**{sentences.failure_title(trial)}**"
        yield code_block(line)


def _phases(result: ProbeResult) -> str:
    rows = [
        (
            str(phase.iteration or ""),
            phase.phase.value,
            format_size(phase.end_allocated_bytes),
            format_size(phase.peak_allocated_bytes),
            share(phase.peak_allocated_bytes, result.capacity_bytes),
        )
        for phase in result.phases
    ]
    return table(("iteration", "phase", ">at end", ">peak", ">of capacity"), rows)


def _memory(found: StepMemory) -> Iterator[str]:
    yield sentence(sentences.memory_peak(found))
    whole = found.peak_allocated_bytes
    if parts := sentences.memory_categories(found):
        rows = [(word, format_size(size), share(size, whole)) for word, size in parts]
        yield table(("category", ">size", ">share"), rows)
    if shown := sentences.memory_modules(found):
        by_module = [
            (_module(row), format_size(row.total_bytes), share(row.total_bytes, whole), holds) for row, holds in shown
        ]
        yield table(("largest modules", ">size", ">share", "mostly"), by_module)
    if lines := memory_lines(found):
        by_line = [
            (code(row.name), format_size(row.total_bytes), share(row.total_bytes, whole), code(row.mostly))
            for row in lines
        ]
        yield table(("largest lines", ">size", ">share", "mostly"), by_line)


def _module(row: ModuleRow) -> str:
    name = sentences.module_name(row)
    return code(name) if row.module else name


def _trials(result: ProbeResult) -> str:
    rows = [
        (
            str(trial.micro_batch),
            sentences.outcome(result, trial),
            optional_size(trial.peak_allocated_bytes),
            optional_size(trial.peak_reserved_bytes),
            str(trial.alloc_retries),
            f"{trial.seconds:.2f}",
        )
        for trial in result.trials
    ]
    return table((">size", "outcome", ">peak allocated", ">peak reserved", ">retries", ">seconds"), rows)
