"""A memory snapshot as GitHub-flavoured Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.reports.diagnosis import tables, wording
from oomdoctor.reports.markdown import code, folded, table
from oomdoctor.reports.wording import CATEGORY_WORDS, optional_size, sentence, share
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import SnapshotComparison, SnapshotSummary, SourceLine


def snapshot_blocks(found: SnapshotSummary) -> Iterator[str]:
    """One snapshot's blocks; its long tables are folded."""
    yield f"#### Memory snapshot of GPU {found.device_index}: {code(found.source)}"
    yield " ".join([sentence(wording.history(found)), sentence(wording.fragmentation(found.fragmentation))])
    yield table(("", ""), wording.totals(found))
    if rows := tables.category_rows(found):
        yield _categories(found, rows)
    if lines := tables.line_rows(found):
        yield folded("Who allocated it", _lines(found, lines))
    if found.largest:
        yield folded("The largest live blocks", _largest(found))
    if found.growing:
        yield folded("Lines whose memory grew step after step", _growing(found))


def comparison_blocks(found: SnapshotComparison) -> Iterator[str]:
    """Two snapshots side by side, at their peaks."""
    yield "#### Two snapshots compared"
    names = [("before", code(found.before)), ("after", code(found.after))]
    yield table(("", ""), names)
    rows = [
        _change(CATEGORY_WORDS[row.category], row.before_bytes, row.after_bytes) for row in tables.change_rows(found)
    ]
    rows.append(_change("in all", found.before_bytes, found.after_bytes))
    yield table(("at the peak", ">before", ">after", ">difference"), rows)
    if found.lines:
        by_line = [_change(_place(line.place), line.before_bytes, line.after_bytes) for line in found.lines]
        yield folded("Lines that differ", table(("line", ">before", ">after", ">difference"), by_line))


def _change(name: str, before_bytes: int, after_bytes: int) -> tuple[str, str, str, str]:
    before, after = format_size(before_bytes), format_size(after_bytes)
    return name, before, after, wording.difference(before_bytes, after_bytes)


def _categories(found: SnapshotSummary, rows: list[tables.CategoryRow]) -> str:
    has_end, whole = tables.has_two_moments(found), sum(row.peak_bytes for row in rows)
    cells = [
        (
            CATEGORY_WORDS[row.category],
            format_size(row.peak_bytes),
            share(row.peak_bytes, whole),
            *((format_size(row.end_bytes),) if has_end else ()),
        )
        for row in rows
    ]
    first = ">at the peak" if found.has_history else ">size"
    return table(("category", first, ">share", *((">when taken",) if has_end else ())), cells)


def _lines(found: SnapshotSummary, rows: list[tables.LineRow]) -> str:
    has_end = tables.has_two_moments(found)
    cells = [
        (
            optional_size(row.peak_bytes),
            *((optional_size(row.end_bytes),) if has_end else ()),
            str(row.blocks),
            CATEGORY_WORDS[row.category],
            _place(row.place),
        )
        for row in rows
    ]
    first = ">at the peak" if found.has_history else ">size"
    return table((first, *((">when taken",) if has_end else ()), ">blocks", "category", "line"), cells)


def _largest(found: SnapshotSummary) -> str:
    rows = [
        (
            wording.blocks(block),
            CATEGORY_WORDS[block.category],
            _place(block.place),
            code(block.innermost or ""),
        )
        for block in found.largest
    ]
    return table((">size", "category", "line", "innermost"), rows)


def _growing(found: SnapshotSummary) -> str:
    rows = [(_place(line.place), CATEGORY_WORDS[line.category], wording.growth(line)) for line in found.growing]
    return table(("line", "category", "growth"), rows)


def _place(line: SourceLine | None) -> str:
    if line is None:
        return wording.UNRECORDED
    return "<br>".join(filter(None, (code(wording.place(line)), code(wording.code(line)))))
