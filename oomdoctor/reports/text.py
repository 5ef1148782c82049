"""What a person reads in a terminal: the answer first, then what to type, then how it was had.

Colour only repeats what the words and the characters say already.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oomdoctor.reports import plan, wording
from oomdoctor.reports.wording import clean
from oomdoctor.results import Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import JustifyMethod, RenderableType

    from oomdoctor.results import Document, Phase, ProbeResult

MINIMUM_WIDTH = 60
"""Columns below which the tables are no longer readable; narrower terminals get this."""

_HEIGHT = 25  # of no effect, except that rich believes the width on every terminal only where it has both
_COLUMNS_BESIDE_BAR = 56
_WIDTH_FOR_RESERVED = 70
_SHORTEST_BAR, _LONGEST_BAR = 10, 40
_UNICODE_BAR, _ASCII_BAR = ("\u2588", "\u2592", "\u00b7"), ("#", "=", ".")
_SIZE_HEADINGS = (">at end", ">peak", ">peak allocated", ">peak reserved")
_OUTCOME_STYLES = {Outcome.FITS: "green", Outcome.OOM: "red", Outcome.LIMIT: "yellow", Outcome.FAILED: "red"}


def render(document: Document, *, width: int, color: bool, unicode: bool = True) -> str:
    """Render a probe's document for a terminal.

    Args:
        document: What the probe found.
        width: Columns; no line is longer, down to `MINIMUM_WIDTH`.
        color: Whether to use ANSI styles.
        unicode: Whether block and line characters can be shown; ASCII stands in where not.

    Returns:
        Lines, each with a newline.
    """
    width = max(width, MINIMUM_WIDTH)
    console = Console(
        file=StringIO(),
        width=width,
        height=_HEIGHT,
        color_system="standard" if color else None,
        force_terminal=color,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        for part in _parts(document, width, unicode=unicode):
            console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().rstrip("\n").split("\n"))


def _parts(document: Document, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    result = document.result
    yield _answer(result, unicode=unicode)
    yield from _warnings(result)
    yield _facts(result)
    if result.accumulation is not None:
        yield _section(plan.title(result.accumulation), *_plan(result))
    if (failure := _failure(result)) is not None:
        yield failure
    if result.phases:
        yield _section(wording.phases_title(result), *_phases(result, width, _UNICODE_BAR if unicode else _ASCII_BAR))
    if result.trials:
        yield _section(wording.trials_title(result.trials), _trials(result, width))
    if result.reasons:
        yield _section("How each number was had", _reasons(result))
    yield Text(", ".join(f"{clean(name)} {clean(version)}" for name, version in document.versions.items()), "dim")


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(result: ProbeResult, *, unicode: bool) -> RenderableType:
    style = "bold green" if result.micro_batch.maximum else "bold red"
    lines = [Text(wording.headline(result), style)]
    if (shortfall := wording.shortfall(result)) is not None:
        lines.append(Text(shortfall))
    panel = Panel(Group(*lines), box=box.HEAVY if unicode else box.ASCII, border_style=style, padding=(1, 2))
    return Padding(panel, (0, 0, 1, 0))


def _warnings(result: ProbeResult) -> Iterator[RenderableType]:
    if texts := wording.warnings(result):
        grid = _grid(1)
        for text in texts:
            grid.add_row(Text("warning:", "bold yellow"), Text(clean(text)))
        yield _indented(grid)


def _facts(result: ProbeResult) -> RenderableType:
    device = result.device
    rows = [
        *wording.answer_rows(result),
        ("target", ", ".join(map(clean, (result.target, result.precision, result.optimizer)))),
        ("device", f"{clean(device.name)}, compute capability {clean(device.compute_capability)}"),
        ("", wording.HOW_KNOWN[device.kind]),
        ("capacity", wording.capacity(result)),
    ]
    return _indented(_pairs(rows))


def _plan(result: ProbeResult) -> Iterator[RenderableType]:
    if result.accumulation is None:
        return
    grid = _grid(2)
    for number, (name, typed, effect) in enumerate(plan.rows(result.accumulation)):
        grid.add_row(Text(name, "dim"), Text(typed, "bold" if number == 0 else ""), Text(effect))
    yield grid
    for note in plan.notes(result):
        yield Text(note)


def _failure(result: ProbeResult) -> RenderableType | None:
    trial = wording.failing_trial(result)
    if trial is None or not (line := wording.first_line(trial.error or "")):
        return None
    return _section(wording.failure_title(trial), Text(line))


# --- memory by phase -------------------------------------------------------------------------------------------------


def _phases(result: ProbeResult, width: int, characters: tuple[str, str, str]) -> Iterator[RenderableType]:
    bar_width = min(_LONGEST_BAR, width - _COLUMNS_BESIDE_BAR)
    shows_bar = bar_width >= _SHORTEST_BAR
    grid = _table("iteration", "phase", ">at end", ">peak", ">", *([""] if shows_bar else []))
    highest = max(phase.peak_allocated_bytes for phase in result.phases)
    previous = None
    for phase in result.phases:
        cells = [
            Text("" if phase.iteration == previous else _iteration(phase), "dim"),
            Text(wording.PHASE_WORDS[phase.phase]),
            Text(format_size(phase.end_allocated_bytes)),
            Text(format_size(phase.peak_allocated_bytes), "bold" if phase.peak_allocated_bytes == highest else ""),
            Text(wording.share(phase.peak_allocated_bytes, result.capacity_bytes)),
        ]
        grid.add_row(*cells, *([_bar(phase, result.capacity_bytes, bar_width, characters)] if shows_bar else []))
        previous = phase.iteration
    yield grid
    if shows_bar:
        held, peak, free = characters
        yield Text(f"{held} held at the end  {peak} up to the peak  {free} free", "dim")


def _iteration(phase: Phase) -> str:
    return str(phase.iteration) if phase.iteration else ""


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


# --- trials and reasons ----------------------------------------------------------------------------------------------


def _trials(result: ProbeResult, width: int) -> RenderableType:
    reserved = [">peak reserved"] if width >= _WIDTH_FOR_RESERVED else []
    table = _table(">size", "outcome", ">peak allocated", *reserved, ">retries", ">seconds")
    for trial in result.trials:
        table.add_row(
            Text(str(trial.micro_batch), "bold" if trial.micro_batch == result.micro_batch.maximum else ""),
            Text(wording.outcome(result, trial), _OUTCOME_STYLES[trial.outcome]),
            Text(wording.optional_size(trial.peak_allocated_bytes)),
            *([Text(wording.optional_size(trial.peak_reserved_bytes))] if reserved else []),
            Text(str(trial.alloc_retries), "yellow" if trial.alloc_retries else "dim"),
            Text(f"{trial.seconds:.2f}"),
        )
    return table


def _reasons(result: ProbeResult) -> RenderableType:
    return _pairs([(clean(reason.subject), clean(reason.text)) for reason in result.reasons])


# --- layout ----------------------------------------------------------------------------------------------------------


def _section(title: str, *parts: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, "bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts)), (0, 0, 1, 0))


def _indented(part: RenderableType) -> RenderableType:
    return Padding(part, (0, 0, 1, 2))


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    grid = _grid(1)
    for name, text in rows:
        grid.add_row(Text(name, "dim"), Text(text))
    return grid


def _grid(columns_before_last: int) -> Table:
    """Columns as wide as they need to be, and a last one that wraps."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns_before_last):
        grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    return grid


def _table(*headings: str) -> Table:
    """A table without lines; a heading that begins with `>` is of a column of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        justify: JustifyMethod = "right" if heading.startswith(">") else "left"
        # Wide enough for any realistic size, which therefore stays on one line.
        least = len("1023.99 MiB") if heading in _SIZE_HEADINGS else None
        table.add_column(heading.removeprefix(">"), justify=justify, overflow="fold", min_width=least)
    return table
