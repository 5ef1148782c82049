"""What a step does at any micro-batch, from what it did at two: every number in it is a line over the size.

A line has to go through whole numbers at every size; a third trace has to lie on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.probing.fitting.templates import numbers_in, with_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.tracing.journal import Entry
    from oomdoctor.tracing.taking import Call


@dataclass(frozen=True, slots=True)
class Steps:
    """What a trial at one size does to memory, loading included.

    Attributes:
        entries: See `oomdoctor.tracing.journal`.
        calls: The calls that entries speak of.
        start: How many entries are from loading.
        fixed_bytes: What stays from one micro-step to the next.
    """

    entries: list[Entry]
    calls: list[Call]
    start: int
    fixed_bytes: int


@dataclass(frozen=True, slots=True)
class _Line:
    index: int
    base: int
    slope: int


class Scale:
    """Two traces that did the same at their sizes, and all sizes in line with them."""

    def __init__(self, small: Steps, entries: list[_Line], calls: list[tuple[list[int], list[_Line]]]) -> None:
        self._small = small
        self._entries = entries
        self._calls = calls

    def at(self, micro_batch: int) -> Steps:
        """What the step does at a size."""
        entries = [*self._small.entries]
        for line in self._entries:
            entries[line.index] = line.base + line.slope * micro_batch
        calls = [
            with_numbers(call, _placed(numbers, lines, micro_batch)) if lines else call
            for call, (numbers, lines) in zip(self._small.calls, self._calls, strict=True)
        ]
        return Steps(entries, calls, self._small.start, self._small.fixed_bytes)


def scale_of(small: Steps, small_size: int, large: Steps, large_size: int) -> Scale | None:
    """The lines through two traces; None where they did not do the same."""
    distance = large_size - small_size
    if len(small.entries) != len(large.entries) or len(small.calls) != len(large.calls):
        return None
    entries = _lines(small.entries, large.entries, small_size, distance)
    if entries is None or not _kinds_agree(small, large):
        return None
    calls = []
    for one, other in zip(small.calls, large.calls, strict=True):
        numbers = numbers_in(one)
        lines = _lines(numbers, numbers_in(other), small_size, distance)
        if lines is None or one.operator != other.operator:
            return None
        calls.append((numbers, lines))
    return Scale(small, entries, calls)


def does_the_same(one: Steps, other: Steps) -> bool:
    """Whether two traces of one size agree in everything."""
    return (
        one.entries == other.entries
        and [call.operator for call in one.calls] == [call.operator for call in other.calls]
        and [*map(numbers_in, one.calls)] == [*map(numbers_in, other.calls)]
    )


def _kinds_agree(small: Steps, large: Steps) -> bool:
    """Frees are of the same allocations; an allocation does not become a free."""
    return all(
        one == other or (isinstance(one, int) and isinstance(other, int) and one > 0 and other > 0)
        for one, other in zip(small.entries, large.entries, strict=True)
    )


def _lines(small: Sequence[Entry], large: Sequence[Entry], small_size: int, distance: int) -> list[_Line] | None:
    """Lines through the numbers that differ; None where one is no line through whole numbers."""
    if len(small) != len(large):
        return None
    lines = []
    for index, (one, other) in enumerate(zip(small, large, strict=True)):
        if one == other:
            continue
        if not isinstance(one, int) or not isinstance(other, int) or (other - one) % distance:
            return None
        slope = (other - one) // distance
        lines.append(_Line(index, one - slope * small_size, slope))
    return lines


def _placed(numbers: Sequence[int], lines: Sequence[_Line], micro_batch: int) -> list[int]:
    placed = [*numbers]
    for line in lines:
        placed[line.index] = line.base + line.slope * micro_batch
    return placed
