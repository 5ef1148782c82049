"""The rows of a snapshot's tables, the same in every report, joined where two lists tell of the same thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.results import Category

if TYPE_CHECKING:
    from oomdoctor.results import CategoryBytes, MemoryLine, SnapshotComparison, SnapshotSummary, SourceLine


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category at the peak and when the snapshot was taken."""

    category: Category
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class LineRow:
    """One line at the peak and when the snapshot was taken; a size is None where the line is not listed."""

    place: SourceLine | None
    category: Category
    peak_bytes: int | None
    end_bytes: int | None
    blocks: int


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One category in two snapshots."""

    category: Category
    before_bytes: int
    after_bytes: int


def has_two_moments(found: SnapshotSummary) -> bool:
    """Whether the peak is another moment than the one when the snapshot was taken."""
    return found.has_history and found.peak != found.end


def category_rows(found: SnapshotSummary) -> list[CategoryRow]:
    """Categories that hold anything, the largest at the peak first."""
    peak, end = _by_category(found.peak.categories), _by_category(found.end.categories)
    rows = [CategoryRow(category, peak.get(category, 0), end.get(category, 0)) for category in Category]
    return sorted((row for row in rows if row.peak_bytes or row.end_bytes), key=lambda row: -row.peak_bytes)


def _by_category(parts: tuple[CategoryBytes, ...]) -> dict[Category, int]:
    return {part.category: part.allocated_bytes for part in parts}


def line_rows(found: SnapshotSummary) -> list[LineRow]:
    """The peak's lines with what they hold at the end, then lines that are listed at the end alone."""
    end = {_key(line): line for line in found.end.lines}
    rows = []
    for line in found.peak.lines:
        later = end.pop(_key(line), None)
        later_bytes = None if later is None else later.allocated_bytes
        rows.append(LineRow(line.place, line.category, line.allocated_bytes, later_bytes, line.blocks))
    added = end.values() if has_two_moments(found) else ()
    return rows + [LineRow(line.place, line.category, None, line.allocated_bytes, line.blocks) for line in added]


def _key(line: MemoryLine) -> tuple[SourceLine | None, Category]:
    return line.place, line.category


def change_rows(found: SnapshotComparison) -> list[ChangeRow]:
    """Categories that hold anything in either snapshot."""
    # A document of another version may know fewer categories or more.
    pairs = zip(Category, found.before_categories, found.after_categories, strict=False)
    return [ChangeRow(category, before, after) for category, before, after in pairs if before or after]
