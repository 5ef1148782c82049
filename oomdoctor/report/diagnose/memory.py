"""The parts of the device's memory that an error's numbers tell, and the rows of a snapshot's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oomdoctor.report.plain_text import count
from oomdoctor.results import Category
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.results import (
        CategoryBytes,
        Facts,
        MemoryLine,
        ProcessMemory,
        SnapshotComparison,
        SnapshotSummary,
        SourceLine,
    )


Use: TypeAlias = Literal["allocated", "unallocated", "outside", "others", "untold", "free"]
"""What a part of the memory is used for; each report has its own colour and character for it."""

_MOST_PROCESSES: Final = 8
_SMALLEST_SHOWN: Final = 1 / 200  # rounded figures leave a difference that means nothing


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the device's memory."""

    use: Use
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceMemoryParts:
    """The device's memory and its parts.

    Attributes:
        title: What it is.
        total_bytes: All of it, or the sum of the parts where that is larger.
        parts: In the order in which a bar shows them; none where the error does not tell enough.
    """

    title: str
    total_bytes: int
    parts: tuple[Part, ...]


def device_memory(facts: Facts) -> DeviceMemoryParts:
    """Return the device's memory; the part that no number accounts for is one of the parts."""
    if facts.mps_max_bytes is not None:
        title, total = "Memory that PyTorch may use", facts.mps_max_bytes
    else:
        title, total = "Memory of the device", facts.total_bytes or 0
    known = _known_parts(facts)
    if not total or not known:
        return DeviceMemoryParts(title, 0, ())
    taken, free = sum(part.size_bytes for part in known), facts.free_bytes
    rest = total - taken - (free or 0)
    if rest > total * _SMALLEST_SHOWN:
        known.append(_rest(facts, rest))
    if free is not None:
        known.append(Part("free", "free", free))
    parts = tuple(part for part in known if part.size_bytes)
    in_all = sum(part.size_bytes for part in parts)
    if in_all > total * (1 + _SMALLEST_SHOWN):  # a driver that spills, or a table of another moment
        has = "PyTorch may use" if facts.mps_max_bytes is not None else "the device has"
        return DeviceMemoryParts(f"Memory in use, {format_size(in_all)}; {has} {format_size(total)}", in_all, parts)
    return DeviceMemoryParts(f"{title}, {format_size(total)}", max(total, in_all), parts)


def _known_parts(facts: Facts) -> list[Part]:
    found = []
    if facts.allocated_bytes is not None:
        found.append(Part("allocated", "in tensors", facts.allocated_bytes))
        if facts.reserved_unallocated_bytes is not None:
            found.append(Part("unallocated", "reserved, in no tensor", facts.reserved_unallocated_bytes))
    elif facts.reserved_bytes is not None:
        found.append(Part("allocated", "reserved by PyTorch", facts.reserved_bytes))
    if facts.non_pytorch_bytes is not None:
        found.append(Part("outside", "this process, outside PyTorch", facts.non_pytorch_bytes))
    elif facts.process_bytes is not None and not found:
        found.append(Part("allocated", "this process", facts.process_bytes))
    if facts.mps_other_bytes is not None:
        found.append(Part("outside", "other allocations of this process", facts.mps_other_bytes))
    others = _others(facts)
    if others_bytes := sum(process.used_bytes or 0 for process in others):
        name = (
            f"process {others[0].pid}" if len(others) == 1 else count(len(others), "other process", "other processes")
        )
        found.append(Part("others", name, others_bytes))
    return found


def _rest(facts: Facts, rest_bytes: int) -> Part:
    if facts.mps_max_bytes is not None:
        return Part("free", "below the limit", rest_bytes)
    if facts.free_bytes is None:
        return Part("untold", "free, or not in the error's text", rest_bytes)
    return Part("untold", "not in the error's text", rest_bytes)


def _others(facts: Facts) -> list[ProcessMemory]:
    return [process for process in facts.other_processes if process.pid != facts.own_pid]


def other_numbers(facts: Facts) -> list[tuple[str, str]]:
    """Return the error's other numbers: (name, value)."""
    shown = {part.name for part in device_memory(facts).parts}
    sizes = [
        ("asked for", facts.tried_bytes),
        ("cap of this process", facts.allowed_bytes),
        ("in private pools", facts.private_pool_bytes),
        ("reserved by PyTorch", facts.reserved_bytes),
        ("this process in all", None if "this process" in shown else facts.process_bytes),
    ]
    if not shown:
        sizes += [
            ("memory of the device", facts.total_bytes),
            ("limit of PyTorch", facts.mps_max_bytes),
            ("free", facts.free_bytes),
            ("in tensors", facts.allocated_bytes),
            ("reserved, in no tensor", facts.reserved_unallocated_bytes),
            ("this process, outside PyTorch", facts.non_pytorch_bytes),
            ("other allocations of this process", facts.mps_other_bytes),
        ]
    rows = [(name, format_size(size)) for name, size in sizes if size is not None and name not in shown]
    return rows + _process_rows(facts, shown)


def _process_rows(facts: Facts, shown: set[str]) -> list[tuple[str, str]]:
    rows = [
        (name, "holds an unknown amount" if process.used_bytes is None else f"holds {format_size(process.used_bytes)}")
        for process in _others(facts)
        if (name := f"process {process.pid}") not in shown
    ]
    if len(rows) > _MOST_PROCESSES:
        rows = [*rows[:_MOST_PROCESSES], ("", f"and {len(rows) - _MOST_PROCESSES} processes more")]
    return rows


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
    """Return whether the peak is another moment than the one when the snapshot was taken."""
    return found.has_history and found.peak != found.end


def category_rows(found: SnapshotSummary) -> list[CategoryRow]:
    """Return categories that hold anything, the largest at the peak first."""
    peak, end = _by_category(found.peak.categories), _by_category(found.end.categories)
    rows = [CategoryRow(category, peak.get(category, 0), end.get(category, 0)) for category in Category]
    return sorted((row for row in rows if row.peak_bytes or row.end_bytes), key=lambda row: -row.peak_bytes)


def _by_category(parts: tuple[CategoryBytes, ...]) -> dict[Category, int]:
    return {part.category: part.allocated_bytes for part in parts}


def line_rows(found: SnapshotSummary) -> list[LineRow]:
    """Return the peak's lines with what they hold at the end, then lines that are listed at the end alone."""
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
    """Return categories that hold anything in either snapshot."""
    # A document of another version may know fewer categories or more.
    pairs = zip(Category, found.before_categories, found.after_categories, strict=False)
    return [ChangeRow(category, before, after) for category, before, after in pairs if before or after]
