"""A probe on the terminal; a dry run as well.

Colour only repeats what the words and the characters say already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from oomdoctor.report.plain_text import clean, first_line, optional_size, share
from oomdoctor.report.probe import plan, ranks, sentences, throughput
from oomdoctor.report.probe.lines import memory_lines
from oomdoctor.report.terminal import aligned, answer, cells, indented, pairs, printed, readable_width, section, table
from oomdoctor.results import Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from oomdoctor.output import Terminal
    from oomdoctor.results import Phase, ProbeDocument, ProbeResult, StepMemory, Trial
    from oomdoctor.results.throughput import Throughput
    from oomdoctor.trial.answer import DryRun
    from oomdoctor.trial.worker_answers import LoadedTarget


_COLUMNS_BESIDE_BAR = 56
_COLUMNS_BESIDE_SHARE = 40
_COLUMNS_BESIDE_COMMAND = 4
_WIDTH_FOR_RESERVED = 70
_SHORTEST_BAR, _LONGEST_BAR = 10, 40
_UNICODE_BAR, _ASCII_BAR = ("\u2588", "\u2592", "\u00b7"), ("#", "=", ".")
_OUTCOME_STYLES = {Outcome.FITS: "green", Outcome.OOM: "red", Outcome.LIMIT: "yellow", Outcome.FAILED: "red"}


def render(document: ProbeDocument, terminal: Terminal) -> str:
    """Render a probe's document for a terminal: lines, each with a newline."""
    width = readable_width(terminal)
    return printed(_parts(document, width, unicode=terminal.unicode), terminal)


def _parts(document: ProbeDocument, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    result = document.result
    yield _answer(result, unicode=unicode)
    yield from _warnings(result)
    yield _facts(result)
    if (heading := plan.plan_heading(result)) is not None:
        yield section(heading, *_plan(result, width))
    trial = sentences.failing_trial(result)
    if trial is not None and (line := first_line(trial.error or "")):
        yield section(sentences.failure_title(trial), Text(line))
    if result.throughput is not None:
        yield section(throughput.title(result.throughput), *_throughput(result.throughput))
    if result.ranks:
        yield section(ranks.ranks_title(result), *_ranks(result))
    if result.phases:
        yield section(sentences.phases_title(result), *_phases(result, width, _UNICODE_BAR if unicode else _ASCII_BAR))
    if result.memory is not None:
        yield section(sentences.memory_title(result.memory), *_memory(result.memory, width, unicode=unicode))
    if result.trials:
        yield section(sentences.trials_title(result.trials), _trials(result, width))
    if result.reasons:
        reasons = [(clean(reason.subject), clean(reason.text)) for reason in result.reasons]
        yield section("Where the numbers come from", pairs(reasons))
    yield Text(", ".join(f"{clean(name)} {clean(version)}" for name, version in document.versions.items()), "dim")


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(result: ProbeResult, *, unicode: bool) -> RenderableType:
    style = "bold green" if result.micro_batch.maximum else "bold red"
    lines = [Text(sentences.headline(result), style)]
    if (shortfall := sentences.shortfall(result)) is not None:
        lines.append(Text(shortfall))
    return answer(lines, style, unicode=unicode)


def _warnings(result: ProbeResult) -> Iterator[RenderableType]:
    if texts := sentences.warnings(result):
        grid = aligned(1)
        for text in texts:
            grid.add_row(Text("warning:", "bold yellow"), Text(clean(text)))
        yield indented(grid)


def _facts(result: ProbeResult) -> RenderableType:
    device = result.device
    rows = [
        *sentences.answer_rows(result),
        ("target", ", ".join(map(clean, sentences.question(result)))),
        ("device", f"{clean(device.name)}, compute capability {clean(device.compute_capability)}"),
        ("", sentences.HOW_KNOWN[device.kind]),
        ("capacity", sentences.capacity(result)),
    ]
    return indented(pairs(rows))


def _plan(result: ProbeResult, width: int) -> Iterator[RenderableType]:
    rows = plan.plan_rows(result)
    if result.command_plan is not None:
        lines = plan.typed_lines(result.command_plan, width - _COLUMNS_BESIDE_COMMAND)
        yield from (Text(line, "bold") for line in lines)
        yield from (Text(effect) for _, _, effect in rows[:1])
        yield from (Text.assemble("with ", (typed, "bold"), f" {effect}") for _, typed, effect in rows[1:])
    else:
        grid = aligned(2)
        for number, (name, typed, effect) in enumerate(rows):
            grid.add_row(Text(name, "dim"), Text(typed, "bold" if number == 0 else ""), Text(effect))
        yield grid
    for note in plan.plan_notes(result):
        yield Text(note)


def _throughput(found: Throughput) -> Iterator[RenderableType]:
    by_size = table(*(f">{name}" for name in throughput.columns(found)))
    for size, row in zip(found.sizes, throughput.rows(found), strict=True):
        by_size.add_row(*(Text(cell, "bold" if size.micro_batch == found.fastest else "") for cell in row))
    yield by_size
    yield from map(Text, throughput.notes(found))


def _ranks(result: ProbeResult) -> Iterator[RenderableType]:
    by_rank = table(*(f">{name}" for name in ranks.RANK_COLUMNS[:-1]), ranks.RANK_COLUMNS[-1])
    for row in ranks.rank_rows(result):
        by_rank.add_row(*(Text(cell) for cell in row))
    yield by_rank
    headings, rows = ranks.rank_phases(result)
    if rows:
        by_phase = table(*headings[:2], *(f">{name}" for name in headings[2:]))
        for row in rows:
            by_phase.add_row(*(Text(cell) for cell in row))
        yield Text()
        yield by_phase


# --- memory by phase -------------------------------------------------------------------------------------------------


def _phases(result: ProbeResult, width: int, characters: tuple[str, str, str]) -> Iterator[RenderableType]:
    bar_width = min(_LONGEST_BAR, width - _COLUMNS_BESIDE_BAR)
    shows_bar = bar_width >= _SHORTEST_BAR
    grid = table("iteration", "phase", ">at end", ">peak", ">", *([""] if shows_bar else []), sizes=("at end", "peak"))
    highest = max(phase.peak_allocated_bytes for phase in result.phases)
    previous = None
    for phase in result.phases:
        cells = [
            Text("" if phase.iteration in (0, previous) else str(phase.iteration), "dim"),
            Text(phase.phase.value),
            Text(format_size(phase.end_allocated_bytes)),
            Text(format_size(phase.peak_allocated_bytes), "bold" if phase.peak_allocated_bytes == highest else ""),
            Text(share(phase.peak_allocated_bytes, result.capacity_bytes)),
        ]
        grid.add_row(*cells, *([_bar(phase, result.capacity_bytes, bar_width, characters)] if shows_bar else []))
        previous = phase.iteration
    yield grid
    if shows_bar:
        held, peak, free = characters
        yield Text(f"{held} held at the end  {peak} up to the peak  {free} free", "dim")


def _bar(phase: Phase, capacity_bytes: int, width: int, characters: tuple[str, str, str]) -> Text:
    held, peak, free = characters
    ends = [phase.end_allocated_bytes, max(phase.peak_allocated_bytes, phase.end_allocated_bytes)]
    # Whole cells, rounded to the nearest; what is beyond the capacity would not have run.
    first, second = (min(width, (2 * end * width + capacity_bytes) // (2 * max(capacity_bytes, 1))) for end in ends)
    return Text.assemble(
        (held * first, "cyan"),
        (peak * (second - first), "cyan"),
        (free * (width - second), "dim"),
    )


# --- what memory is made of ------------------------------------------------------------------------------------------


def _memory(found: StepMemory, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    yield Text(sentences.memory_peak(found))
    whole = found.peak_allocated_bytes
    if parts := sentences.memory_categories(found):
        yield _categories(parts, whole, width, unicode=unicode)
    if shown := sentences.memory_modules(found):
        grid = table("largest modules", ">size", ">", "mostly", sizes=("size",))
        for row, holds in shown:
            name, size = Text(sentences.module_name(row)), Text(format_size(row.total_bytes))
            grid.add_row(name, size, Text(share(row.total_bytes, whole)), Text(holds))
        yield Text()
        yield grid
    if lines := memory_lines(found):
        grid = table("largest lines", ">size", ">", "mostly", sizes=("size",))
        for line in lines:
            part = Text(share(line.total_bytes, whole))
            grid.add_row(Text(line.name), Text(format_size(line.total_bytes)), part, Text(line.mostly))
        yield Text()
        yield grid


def _categories(parts: list[tuple[str, int]], whole: int, width: int, *, unicode: bool) -> RenderableType:
    bar_width = min(_LONGEST_BAR, width - _COLUMNS_BESIDE_SHARE)
    bar = (_UNICODE_BAR if unicode else _ASCII_BAR)[0]
    grid = table("category", ">size", ">", "", sizes=("size",))
    for word, size in parts:
        length, _ = cells([size, max(whole - size, 0)], bar_width)
        grid.add_row(Text(word), Text(format_size(size)), Text(share(size, whole)), Text(bar * length, "cyan"))
    return grid


# --- trials and reasons ----------------------------------------------------------------------------------------------


def _trials(result: ProbeResult, width: int) -> RenderableType:
    reserved = [">peak reserved"] if width >= _WIDTH_FOR_RESERVED else []
    headings = (">size", "outcome", ">peak allocated", *reserved, ">retries", ">seconds")
    rows = table(*headings, sizes=("peak allocated", "peak reserved"))
    for trial in result.trials:
        rows.add_row(
            Text(str(trial.micro_batch), "bold" if trial.micro_batch == result.micro_batch.maximum else ""),
            Text(sentences.outcome(result, trial), _OUTCOME_STYLES[trial.outcome]),
            Text(optional_size(trial.peak_allocated_bytes)),
            *([Text(optional_size(trial.peak_reserved_bytes))] if reserved else []),
            Text(str(trial.alloc_retries), "yellow" if trial.alloc_retries else "dim"),
            Text(f"{trial.seconds:.2f}"),
        )
    return rows


def render_dry_run(target: str, tried: DryRun) -> str:
    """Return text without a final newline."""
    width = max(map(len, tried.loaded.found))
    return "\n".join(
        [
            target,
            *(f"  {role:{width}}  {where}" for role, where in tried.loaded.found.items()),
            "",
            *_device_lines(tried.loaded),
            *(f"  {reason.subject}: {reason.text}" for reason in tried.engine.reasons),
            "",
            _trial_line(tried.trial, tried.loaded),
        ]
    )


def _device_lines(loaded: LoadedTarget) -> list[str]:
    weights = loaded.weights_bytes
    return [
        f"{loaded.name}, compute capability {loaded.compute_capability}",
        f"  PyTorch may take {format_size(loaded.capacity_bytes)}",
        *([] if weights is None else [f"  the weights take {format_size(weights)}"]),
    ]


def _trial_line(trial: Trial | None, loaded: LoadedTarget) -> str:
    if trial is None:
        return f"The model could not be placed: {loaded.placement_error}"
    peak = "" if trial.peak_allocated_bytes is None else f", peak {format_size(trial.peak_allocated_bytes)}"
    line = f"One trial at micro-batch {trial.micro_batch}: {trial.outcome}{peak}"
    return line if trial.error is None else f"{line}\n  {trial.error}"
