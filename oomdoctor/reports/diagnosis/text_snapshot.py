"""A memory snapshot in a terminal: what the peak is made of, who allocated it, its holes, and memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from oomdoctor.reports.diagnosis import tables, wording
from oomdoctor.reports.diagnosis.text_timeline import timeline
from oomdoctor.reports.terminal import cells, pairs, section, table
from oomdoctor.reports.wording import CATEGORY_WORDS, optional_size, sentence, share, shortened
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from oomdoctor.results import SnapshotComparison, SnapshotSummary, SourceLine

_MOST_LINES: Final = 8
_LONGEST_NAME: Final = 120
_WIDTH_FOR_BAR: Final = 76
_WIDTH_FOR_MORE: Final = 100
_LONGEST_BAR: Final = 28
_BAR: Final = ("\u2588", "#")


def snapshot_parts(found: SnapshotSummary, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    """One snapshot's sections."""
    history = Text(sentence(wording.history(found)), "dim")
    yield section(wording.snapshot_title(found), history, pairs(wording.totals(found)))
    if rows := tables.category_rows(found):
        yield section(f"What memory is for{_when(found)}", _categories(found, rows, width, unicode=unicode))
    if lines := tables.line_rows(found):
        yield section(f"Who allocated it{_when(found)}", *_lines(found, lines, width))
    if found.largest:
        yield section("The largest live blocks", *_largest(found))
    if found.growing:
        yield section("Lines whose memory grew step after step", *_growing(found))
    yield section("Holes", Text(sentence(wording.fragmentation(found.fragmentation))))
    if found.timeline:
        yield section("Memory over the history", timeline(found, width - 2, unicode=unicode))


def comparison_parts(found: SnapshotComparison) -> Iterator[RenderableType]:
    """Two snapshots side by side."""
    grid = table("at the peak", ">before", ">after", ">difference", sizes=("before", "after", "difference"))
    for row in tables.change_rows(found):
        _add_change(grid, Text(CATEGORY_WORDS[row.category]), row.before_bytes, row.after_bytes)
    _add_change(grid, Text("in all", "bold"), found.before_bytes, found.after_bytes)
    names = [("before", shortened(found.before, _LONGEST_NAME)), ("after", shortened(found.after, _LONGEST_NAME))]
    yield section("Two snapshots compared", pairs(names), grid)
    if found.lines:
        by_line = table("line", ">before", ">after", ">difference", sizes=("before", "after", "difference"))
        for line in found.lines[:_MOST_LINES]:
            _add_change(by_line, _place(line.place), line.before_bytes, line.after_bytes)
        yield section("Lines that differ", by_line, *_left_out(found.lines))


def _when(found: SnapshotSummary) -> str:
    return " at the peak" if found.has_history else ""


def _add_change(grid: Table, name: Text, before_bytes: int, after_bytes: int) -> None:
    grid.add_row(
        name,
        Text(format_size(before_bytes)),
        Text(format_size(after_bytes)),
        Text(wording.difference(before_bytes, after_bytes), "bold"),
    )


def _categories(
    found: SnapshotSummary, rows: Sequence[tables.CategoryRow], width: int, *, unicode: bool
) -> RenderableType:
    later = ["at the end"] if tables.has_two_moments(found) else []
    whole = sum(row.peak_bytes for row in rows)
    has_bar = width >= _WIDTH_FOR_BAR
    grid = table("category", ">size", ">", *(f">{name}" for name in later), *([""] if has_bar else []), sizes=("size",))
    for row in rows:
        length, _ = cells([row.peak_bytes, whole - row.peak_bytes], _LONGEST_BAR)
        grid.add_row(
            Text(CATEGORY_WORDS[row.category]),
            Text(format_size(row.peak_bytes)),
            Text(share(row.peak_bytes, whole)),
            *(Text(format_size(row.end_bytes), "dim") for _ in later),
            *([Text(_BAR[not unicode] * length, "cyan")] if has_bar else []),
        )
    return grid


def _lines(found: SnapshotSummary, rows: Sequence[tables.LineRow], width: int) -> Iterator[RenderableType]:
    later = ["at the end"] if tables.has_two_moments(found) and width >= _WIDTH_FOR_MORE else []
    blocks = ["blocks"] if width >= _WIDTH_FOR_MORE else []
    grid = table(">size", *(f">{name}" for name in later + blocks), "category", "line", sizes=("size", "at the end"))
    for row in rows[:_MOST_LINES]:
        grid.add_row(
            Text(optional_size(row.peak_bytes)),
            *(Text(optional_size(row.end_bytes), "dim") for _ in later),
            *(Text(str(row.blocks), "dim") for _ in blocks),
            Text(CATEGORY_WORDS[row.category]),
            _place(row.place),
        )
    yield grid
    yield from _left_out(rows)


def _largest(found: SnapshotSummary) -> Iterator[RenderableType]:
    grid = table(">size", "category", "line", sizes=("size",))
    for block in found.largest[:_MOST_LINES]:
        place = _place(block.place)
        if block.innermost:
            place.append(f"\n{shortened(block.innermost, _LONGEST_NAME)}", "dim")
        grid.add_row(Text(wording.blocks(block)), Text(CATEGORY_WORDS[block.category]), place)
    yield grid
    yield from _left_out(found.largest)


def _growing(found: SnapshotSummary) -> Iterator[RenderableType]:
    grid = table("category", "line")
    for line in found.growing[:_MOST_LINES]:
        place = _place(line.place)
        place.append(f"\n{wording.growth(line)}", "bold")
        grid.add_row(Text(CATEGORY_WORDS[line.category]), place)
    yield grid
    yield from _left_out(found.growing)


def _place(line: SourceLine | None) -> Text:
    text = Text(shortened(wording.place(line), _LONGEST_NAME))
    if code := wording.code(line):
        text.append(f"\n{shortened(code, _LONGEST_NAME)}", "dim")
    return text


def _left_out(rows: Sequence[object]) -> Iterator[RenderableType]:
    if len(rows) > _MOST_LINES:
        yield Text(f"and {len(rows) - _MOST_LINES} more; `--json` and `--html` have them", "dim")
