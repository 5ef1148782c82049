"""A probe as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report.charts import timeline as phases
from oomdoctor.report.charts import trials
from oomdoctor.report.charts.scales import SCALE, Words, longest_fitting
from oomdoctor.report.charts.timeline import timeline
from oomdoctor.report.html import render_page
from oomdoctor.report.plain_text import CATEGORY_WORDS, first_line, listed, percent
from oomdoctor.report.probe import ranks, sentences, throughput
from oomdoctor.report.probe.lines import line_rows
from oomdoctor.report.probe.plan import first_plan, plan_heading, plan_notes, plan_rows
from oomdoctor.report.probe.sentences import module_name, module_rows
from oomdoctor.results import Category, Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oomdoctor.report.charts.trials import TrialsChart
    from oomdoctor.report.probe.sentences import ModuleRow
    from oomdoctor.results import PhaseMemory, ProbeDocument, ProbeResult, StepMemory
    from oomdoctor.results.throughput import Throughput


_MOST_ROWS: Final = 200
"""Rows of a table that a page shows; a browser shows more only slowly."""

_MOST_NAMED: Final = 3


def sections(result: ProbeResult) -> dict[str, Any]:
    """Return the values of the template's sections by name; None or empty for a section without content."""
    return {
        "result": result,
        "facts": _facts(result),
        "warnings": sentences.warnings(result),
        "plan": None if (heading := plan_heading(result)) is None else _plan(result, heading),
        "memory": None if result.memory is None else _memory(result, result.memory),
        "ranks": _ranks(result) if result.ranks else None,
        "throughput": None if result.throughput is None else _throughput(result.throughput),
        "trials": _trials(result) if result.trials else None,
        "phases": {"title": sentences.phases_title(result), "rows": result.phases[:_MOST_ROWS]}
        if result.phases
        else None,
        "failure": _failure(result),
        "reasons": result.reasons[:_MOST_ROWS],
    }


def _throughput(found: Throughput) -> dict[str, Any]:
    """Return the throughput of each size, with its memory beside it."""
    return {
        "title": throughput.title(found),
        "columns": throughput.columns(found),
        "rows": list(zip(found.sizes, throughput.rows(found), strict=True))[:_MOST_ROWS],
        "highest": max((size.samples_per_second or 0 for size in found.sizes), default=0),
        "fastest": found.fastest,
        "notes": list(throughput.notes(found)),
    }


def _ranks(result: ProbeResult) -> dict[str, Any]:
    """Return the ranks side by side: a bar of each, and their phases in columns."""
    headings, rows = ranks.rank_phases(result)
    peaks = [each.peak_reserved_bytes or 0 for each in result.ranks]
    return {
        "title": ranks.ranks_title(result),
        "columns": ranks.RANK_COLUMNS,
        "rows": list(zip(ranks.rank_rows(result), peaks, strict=True))[:_MOST_ROWS],
        "headings": headings,
        "phases": rows,
    }


def _facts(result: ProbeResult) -> list[tuple[str, str]]:
    device = result.device
    return [
        *sentences.answer_rows(result),
        ("target", ", ".join(sentences.question(result))),
        ("device", f"{device.name}, compute capability {device.compute_capability}"),
        ("how known", sentences.HOW_KNOWN[device.kind]),
        ("capacity", sentences.capacity(result)),
    ]


def _failure(result: ProbeResult) -> dict[str, str] | None:
    trial = sentences.failing_trial(result)
    if trial is None or not (line := first_line(trial.error or "")):
        return None
    return {"title": sentences.failure_title(trial), "line": line}


# --- the plan --------------------------------------------------------------------------------------------------------


def _plan(result: ProbeResult, heading: str) -> dict[str, Any]:
    rows, found = plan_rows(result), first_plan(result)
    one = (result.command_plan.sizes.micro_batch,) if result.command_plan and result.command_plan.sizes else ()
    return {
        "title": heading,
        "blocks": micro_batch_bars(one if found is None else found.micro_batches),
        "description": rows[0][2] if rows else "",
        "rows": rows,
        "notes": plan_notes(result),
    }


_MOST_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class MicroBatchBar:
    """Micro-batches of one size, one after another.

    Attributes:
        left: Where the block begins, in units of the row.
        width: How wide it is, in the same units.
        micro_batch: Samples in each; None where several sizes are one block.
        steps: How many.
        words: What it says, as far as there is room.
    """

    left: float
    width: float
    micro_batch: int | None
    steps: int
    words: Words


def micro_batch_bars(micro_batches: Sequence[int]) -> tuple[MicroBatchBar, ...]:
    """Return the plan's micro-batches in order: each its own block, or those of a size as one where there are many."""
    runs = [(size, 1) for size in micro_batches]
    if len(runs) > _MOST_BLOCKS:
        runs = [(size, len(list(run))) for size, run in groupby(micro_batches)]
    # Only a plan from elsewhere has so many sizes.
    rest = runs[_MOST_BLOCKS:]
    whole = max(sum(micro_batches), 1)
    return tuple(_placed(runs[:_MOST_BLOCKS], rest, whole))


def _placed(runs: Iterable[tuple[int, int]], rest: Sequence[tuple[int, int]], whole: int) -> Iterable[MicroBatchBar]:
    done = 0
    for size, steps in runs:
        yield _block(done, size * steps, whole, size, steps)
        done += size * steps
    if rest:
        yield _block(done, sum(size * steps for size, steps in rest), whole, None, sum(steps for _, steps in rest))


def _block(done: int, samples: int, whole: int, size: int | None, steps: int) -> MicroBatchBar:
    left, right = (round(edge * SCALE / whole, 1) for edge in (done, done + samples))
    width = round(right - left, 1)
    return MicroBatchBar(left, width, size, steps, longest_fitting(_names(size, steps), width))


def _names(size: int | None, steps: int) -> tuple[str, ...]:
    if size is None:
        return (f"{steps} more", "...")
    return (str(size),) if steps == 1 else (f"{steps} \u00d7 {size}", f"{steps}\u00d7")


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(result: ProbeResult, found: StepMemory) -> dict[str, Any]:
    held = [part for part in found.categories if part.allocated_bytes]
    return {
        "found": found,
        "title": f"Memory over two optimizer steps at micro-batch {found.micro_batch}",
        "peak": _peak(result, found),
        "chart": _timeline(result, found) if found.timeline else None,
        "description": _description(found),
        "categories": held,
        "whole_bytes": sum(part.allocated_bytes for part in held),
        "phases": found.phases[:_MOST_ROWS],
        "columns": _columns(found.phases[:_MOST_ROWS]),
        "modules": [_module(row) for row in module_rows(found.modules)],
        "lines": line_rows(found, _MOST_ROWS),
        "widest_bytes": max((row.total_bytes for row in module_rows(found.modules)), default=0),
    }


def _peak(result: ProbeResult, found: StepMemory) -> str:
    where = f"in the {found.peak_phase.value} of iteration {found.peak_iteration}"
    # Memory may have been recorded at a size that was asked for and does not fit.
    excess = found.peak_allocated_bytes - result.capacity_bytes
    beyond = f", {format_size(excess)} above the capacity" if excess > 0 else ""
    return f"the peak is {format_size(found.peak_allocated_bytes)}, {where}{beyond}"


def _timeline(result: ProbeResult, found: StepMemory) -> object:
    return timeline(
        found.timeline,
        result.capacity_bytes,
        peak_note=f", {found.peak_phase.value} of iteration {found.peak_iteration}",
        strips=tuple(filter(None, (phases.phases(found), phases.iterations(found)))),
    )


def _description(found: StepMemory) -> str:
    parts = [f"{CATEGORY_WORDS[part.category]} {format_size(part.allocated_bytes)}" for part in found.categories]
    made = f"Made of {listed(parts)}. " if parts else ""
    return f"At the peak {format_size(found.peak_allocated_bytes)} are allocated. {made}The tables below have the rest."


def _columns(shown: Sequence[PhaseMemory]) -> list[tuple[int, Category]]:
    """Return categories that hold anything in any phase, with their place in the figures."""
    return [
        (index, category)
        for index, category in enumerate(Category)
        if any(index < len(phase.peak_categories) and phase.peak_categories[index] for phase in shown)
    ]


def _module(row: ModuleRow) -> dict[str, Any]:
    largest = sorted(row.parts, key=lambda part: -part[1])
    named = [f"{CATEGORY_WORDS[category]} {format_size(size)}" for category, size in largest[:_MOST_NAMED]]
    if len(largest) > _MOST_NAMED:
        rest = sum(size for _, size in largest[_MOST_NAMED:])
        named.append(f"other {format_size(rest)}")
    return {"row": row, "name": module_name(row), "is_path": bool(row.module), "parts": ", ".join(named)}


# --- trials ----------------------------------------------------------------------------------------------------------


def _trials(result: ProbeResult) -> dict[str, Any]:
    chart = trials.chart(result)
    return {
        "title": sentences.trials_title(result.trials),
        "chart": chart,
        "legend": [] if chart is None else _legend(result, chart),
        "description": f"{sentences.headline(result)}. The table of the trials has every figure.",
        "rows": [{"trial": trial, "outcome": sentences.outcome(result, trial)} for trial in result.trials[:_MOST_ROWS]],
        "more": max(0, len(result.trials) - _MOST_ROWS),
    }


def _legend(result: ProbeResult, chart: TrialsChart) -> list[tuple[Outcome, bool, str]]:
    kinds = {(mark.outcome, mark.is_lowered and mark.outcome is Outcome.FITS) for mark in chart.marks}
    return [
        (outcome, lowered, _kind(result, outcome, lowered=lowered))
        for outcome in Outcome
        for lowered in (False, True)
        if (outcome, lowered) in kinds
    ]


def _kind(result: ProbeResult, outcome: Outcome, *, lowered: bool) -> str:
    if outcome is Outcome.OOM:
        return f"{sentences.OUTCOME_NAMES[outcome]}, at what it had reached"
    return f"{sentences.OUTCOME_NAMES[outcome]}{f' with {percent(result.headroom)} withheld' if lowered else ''}"


_STATUS_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fits": "fits",
        "limited": "fits, up to a size limit",
        "nothing_fits": "nothing fits",
        "interrupted": "interrupted when it had its answer",
    }
)


def render(document: ProbeDocument) -> str:
    """Render a probe's document as one self-contained HTML page."""
    result = document.result
    values = {
        "document": document,
        "status": _STATUS_WORDS[document.status],
        "headline": sentences.headline(result),
        "summary": sentences.shortfall(result),
        "probe": sections(result),
    }
    return render_page("probe.html", values)
