"""What the device's memory is taken up by, as the error's numbers tell, and the numbers that are no part of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oomdoctor.reports.wording import count
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.results import Facts, ProcessMemory

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
class Memory:
    """The device's memory and its parts.

    Attributes:
        title: What it is.
        total_bytes: All of it, or the sum of the parts where that is larger.
        parts: In the order in which a bar shows them; none where the error does not tell enough.
    """

    title: str
    total_bytes: int
    parts: tuple[Part, ...]


def memory(facts: Facts) -> Memory:
    """The device's memory; the part that no number accounts for is one of the parts."""
    if facts.mps_max_bytes is not None:
        title, total = "Memory that PyTorch may use", facts.mps_max_bytes
    else:
        title, total = "Memory of the device", facts.total_bytes or 0
    known = _known_parts(facts)
    if not total or not known:
        return Memory(title, 0, ())
    taken, free = sum(part.size_bytes for part in known), facts.free_bytes
    rest = total - taken - (free or 0)
    if rest > total * _SMALLEST_SHOWN:
        known.append(_rest(facts, rest))
    if free is not None:
        known.append(Part("free", "free", free))
    parts = tuple(part for part in known if part.size_bytes)
    return Memory(f"{title}, {format_size(total)}", max(total, sum(part.size_bytes for part in parts)), parts)


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
        return Part("untold", "free, or not told by the error", rest_bytes)
    return Part("untold", "not told by the error", rest_bytes)


def _others(facts: Facts) -> list[ProcessMemory]:
    return [process for process in facts.other_processes if process.pid != facts.own_pid]


def other_numbers(facts: Facts) -> list[tuple[str, str]]:
    """What the error says besides the parts of the memory: (name, value)."""
    shown = {part.name for part in memory(facts).parts}
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
