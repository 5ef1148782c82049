"""Traces at any micro-batch from traces at two: every number of a step is a line over the size.

A line has to go through whole numbers at every size; a third trace has to lie on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.engines.trace.op_trace import Entry, OperatorCall


def numbers_in(call: OperatorCall) -> list[int]:
    """Return every whole number of a call: shapes, strides, arguments, in order."""
    return list(_numbers((call.args, call.kwargs, call.results)))


def with_numbers(call: OperatorCall, numbers: Sequence[int]) -> OperatorCall:
    """Return a call with other numbers; its tensors have no memory."""
    following = iter(numbers)
    args, kwargs, results = _rebuilt((call.args, call.kwargs, call.results), following)
    return replace(call, args=args, kwargs=kwargs, results=results)


def _numbers(value: Any) -> Iterator[int]:  # noqa: ANN401 - nests of arguments
    if isinstance(value, torch.Tensor):
        yield from (*value.shape, *value.stride())
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)


def _rebuilt(value: Any, numbers: Iterator[int]) -> Any:  # noqa: ANN401 - nests of arguments
    if isinstance(value, torch.Tensor):
        shape, stride = ([next(numbers) for _ in value.shape] for _ in range(2))
        return value if value.is_cpu else torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    if isinstance(value, int) and not isinstance(value, bool):
        return next(numbers)
    if isinstance(value, list | tuple):
        items = [_rebuilt(item, numbers) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: _rebuilt(item, numbers) for name, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Trace of the allocations and calls of a trial at one size, loading included.

    Attributes:
        entries: See `oomdoctor.engines.trace.op_trace`.
        calls: The calls that entries speak of.
        start: How many entries are from loading.
        fixed_bytes: What stays from one micro-step to the next.
    """

    entries: list[Entry]
    calls: list[OperatorCall]
    start: int
    fixed_bytes: int


@dataclass(frozen=True, slots=True)
class _LinearNumber:
    index: int
    base: int
    slope: int


class LinearScaling:
    """Two traces that did the same at their sizes, and all sizes in line with them."""

    def __init__(
        self, small: MemoryTrace, entries: list[_LinearNumber], calls: list[tuple[list[int], list[_LinearNumber]]]
    ) -> None:
        self._small = small
        self._entries = entries
        self._calls = calls

    def at(self, micro_batch: int) -> MemoryTrace:
        """Return the trace at a size."""
        entries = [*self._small.entries]
        for line in self._entries:
            entries[line.index] = line.base + line.slope * micro_batch
        calls = [
            with_numbers(call, _placed(numbers, lines, micro_batch)) if lines else call
            for call, (numbers, lines) in zip(self._small.calls, self._calls, strict=True)
        ]
        return MemoryTrace(entries, calls, self._small.start, self._small.fixed_bytes)


def linear_scaling(small: MemoryTrace, small_size: int, large: MemoryTrace, large_size: int) -> LinearScaling | None:
    """Return the lines through two traces; None where they did not do the same."""
    distance = large_size - small_size
    if len(small.entries) != len(large.entries) or len(small.calls) != len(large.calls):
        return None
    entries = _lines(small.entries, large.entries, small_size, distance)
    if entries is None or not (
        all(
            one == other or (isinstance(one, int) and isinstance(other, int) and one > 0 and other > 0)
            for one, other in zip(small.entries, large.entries, strict=True)
        )
    ):
        return None
    calls = []
    for one, other in zip(small.calls, large.calls, strict=True):
        numbers = numbers_in(one)
        lines = _lines(numbers, numbers_in(other), small_size, distance)
        if lines is None or one.operator != other.operator:
            return None
        calls.append((numbers, lines))
    return LinearScaling(small, entries, calls)


def does_the_same(one: MemoryTrace, other: MemoryTrace) -> bool:
    """Return whether two traces of one size agree in everything."""
    return (
        one.entries == other.entries
        and [call.operator for call in one.calls] == [call.operator for call in other.calls]
        and [*map(numbers_in, one.calls)] == [*map(numbers_in, other.calls)]
    )


def _lines(
    small: Sequence[Entry], large: Sequence[Entry], small_size: int, distance: int
) -> list[_LinearNumber] | None:
    """Return lines through the numbers that differ; None where one is no line through whole numbers."""
    if len(small) != len(large):
        return None
    lines = []
    for index, (one, other) in enumerate(zip(small, large, strict=True)):
        if one == other:
            continue
        if not isinstance(one, int) or not isinstance(other, int) or (other - one) % distance:
            return None
        slope = (other - one) // distance
        lines.append(_LinearNumber(index, one - slope * small_size, slope))
    return lines


def _placed(numbers: Sequence[int], lines: Sequence[_LinearNumber], micro_batch: int) -> list[int]:
    placed = [*numbers]
    for line in lines:
        placed[line.index] = line.base + line.slope * micro_batch
    return placed
