"""The allocations of a training step as lines over the micro-batch, and the largest size that they leave room for.

Every allocation of a step grows by a fixed number of bytes a sample, or not at all, but for some buffers of kernels
that are freed at once. So two trials that did the same tell what a step allocates at any size, and where an allocator
can place all of it, the step fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from oomdoctor.agent.allocator_blocks import STEP_END, canonical_order
from oomdoctor.search.growth import ANSWER_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace


def largest_placeable(
    low: int, high: int, *, is_live_within: Callable[[int], bool], can_place: Callable[[int], bool]
) -> int:
    """Return the largest size that can be placed, of sizes whose live bytes alone tell what cannot be.

    No packing is better than perfect: the search begins at the largest size whose live bytes have room, and goes down.

    Args:
        low: A size that can be placed, or 0.
        high: A size that cannot, or one above the largest in question.
        is_live_within: Whether a size's live bytes have room, were nothing lost to packing.
        can_place: Whether an allocator can place a size.
    """
    high = min(high, 1 + _bisected(is_live_within, low, high))
    reach = 1
    while high - reach > low and not can_place(high - reach):
        high, reach = high - reach, 2 * reach
    return _bisected(can_place, max(low, high - reach), high)


def _bisected(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest size between `low`, where it is taken to hold, and `high`, where it is taken not to."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class AllocationLine:
    """An allocation as a line over the micro-batch; or a free, of the allocation at a position.

    Every allocation of a training step grows by a fixed number of bytes a sample, or not at all.
    """

    base_bytes: float
    bytes_a_sample: float
    freed: int | None

    def size_at(self, micro_batch: int) -> int:
        """Return the bytes that are asked for at a size."""
        return max(1, round(self.base_bytes + self.bytes_a_sample * micro_batch))


@dataclass(frozen=True, slots=True)
class StepAllocations:
    """Allocations and frees of a trial's optimizer steps.

    Attributes:
        lines: Of all steps, in order.
        steps: Number of steps.
        last_start: Position in `lines` at which the last step begins.
    """

    lines: list[AllocationLine]
    steps: int
    last_start: int

    def with_steps(self, steps: int) -> list[AllocationLine]:
        """Return the allocations of so many steps, each further one like the last; fewer where it cannot be repeated.

        What a step frees of the one before it, such as the batch and the loss, the next frees of this one.
        """
        last = self.lines[self.last_start :]
        before = sum(line.freed is None for line in self.lines[: self.last_start])
        own = [line for line in last if line.freed is None]
        freed = {line.freed for line in last if line.freed is not None}
        inherited = sorted(position for position in freed if position < before)
        left = [position for position in range(before, before + len(own)) if position not in freed]
        allocations = [line for line in self.lines if line.freed is None]
        if [allocations[one] for one in inherited] != [allocations[one] for one in left]:
            return self.lines
        heirs = dict(zip(inherited, left, strict=True))
        lines = list(self.lines)
        for step in range(steps - self.steps):
            shift = step * len(own)
            for line in last:
                if line.freed is None:
                    lines.append(line)
                else:
                    position = heirs.get(line.freed, line.freed + len(own)) + shift
                    lines.append(AllocationLine(0, 0, position))
        return lines


def allocation_lines(traces: Mapping[int, AllocationTrace]) -> StepAllocations | None:
    """Return the allocations as lines through the two largest trials that did the same in the same order.

    With three trials the largest need not have a partner to the last buffer: kernels take some that are freed at once,
    such as those of a sum over many rows, only from a size on. These are then as large as the largest trial had them.

    Args:
        traces: Trace by micro-batch, of trials that fit.

    Returns:
        None where no two trials did the same at their two sizes.
    """
    sizes = sorted(traces, reverse=True)
    for index, large in enumerate(sizes):
        for small in sizes[index + 1 :]:
            if _shape(traces[small]) == _shape(traces[large]):
                return _step_allocations(traces[small], traces[large], small, large)
        for small in sizes[index + 1 :] if len(sizes) >= _SIZES_TO_ALIGN else ():
            aligned = _with_passing_of(traces[large], traces[small])
            if aligned is not None:
                return _step_allocations(aligned, traces[large], small, large)
    return None


_SIZES_TO_ALIGN: Final = 3


@dataclass(frozen=True, slots=True)
class _Staying:
    """A trace without what passes: allocations that are freed before another one is made that stays.

    Attributes:
        shape: What is left, as `_shape` has it, with frees that follow each other in the order of their allocations.
        sizes: Of the allocations that are left.
        passing: Sizes of the others, by the number of allocations before them that stay.
        passes: Positions of those others.
    """

    shape: list[int]
    sizes: list[int]
    passing: dict[int, list[int]]
    passes: set[int]

    @classmethod
    def of(cls, trace: AllocationTrace) -> _Staying:
        """Tell apart what stays and what passes."""
        passes, numbers = _passing(trace), dict[int, int]()
        shape, sizes, passing = list[int](), list[int](), dict[int, list[int]]()
        for position, event in _positions(trace):
            if position is None:
                shape.append(STEP_END)
            elif position in passes:
                if event > 0:
                    passing.setdefault(len(sizes), []).append(event)
            elif event < 0:
                shape.append(-1 - numbers[position])
            else:
                numbers[position] = len(sizes)
                sizes.append(event)
                shape.append(1)
        return cls(list(canonical_order(shape)), sizes, passing, passes)


def _positions(trace: AllocationTrace) -> Iterator[tuple[int | None, int]]:
    """Yield each event with the position of the allocation that it makes or frees; None for the end of a step."""
    made = -1
    for event in trace:
        if event == STEP_END:
            yield None, event
        elif event < 0:
            yield -1 - event, event
        else:
            made += 1
            yield made, event


def _passing(trace: AllocationTrace) -> set[int]:
    """Return the positions of allocations that are freed before another one is made that stays."""
    found: set[int] = set()
    last: list[int] = []
    for kind, events in groupby(_positions(trace), key=lambda event: (event[1] > 0) - (event[1] < 0)):
        positions = [position for position, _ in events if position is not None]
        if kind > 0:
            last += positions
            continue
        while last and last[-1] in positions:
            found.add(last.pop())
        if kind == 0 or not found.issuperset(positions):
            last = []
    return found


def _with_passing_of(large_trace: AllocationTrace, small_trace: AllocationTrace) -> AllocationTrace | None:
    """Return the trace of a small trial with what passes in a large one; None where what stays is not the same."""
    large, small = _Staying.of(large_trace), _Staying.of(small_trace)
    if large.shape != small.shape:
        return None
    sizes = iter(small.sizes)
    passing = {count: iter(_paired(own, small.passing.get(count, []))) for count, own in large.passing.items()}
    found, count = list[int](), 0
    for position, event in _positions(large_trace):
        if event <= STEP_END:
            found.append(event)
        elif position in large.passes:
            found.append(next(passing[count]))
        else:
            found.append(next(sizes))
            count += 1
    return found


def _paired(large: list[int], small: list[int]) -> list[int]:
    """Return the sizes of the small trial where it has as many, else those of the large one."""
    return small if len(small) == len(large) else large


def _step_allocations(small_trace: AllocationTrace, large_trace: AllocationTrace, *sizes: int) -> StepAllocations:
    lines: list[AllocationLine] = []
    starts = [0]
    for pair in zip(small_trace, large_trace, strict=True):
        if pair[0] == STEP_END:
            starts.append(len(lines))
        else:
            lines.append(_line(*pair, *sizes))
    return StepAllocations(lines, len(starts), starts[-1])


def _shape(trace: AllocationTrace) -> list[int]:
    return [min(event, 1) for event in trace]


def _line(small_event: int, large_event: int, small: int, large: int) -> AllocationLine:
    if small_event < 0:
        return AllocationLine(0, 0, -1 - small_event)
    slope = (large_event - small_event) / (large - small)
    return AllocationLine(small_event - slope * small, slope, None)


def passing_allocations(lines: Sequence[AllocationLine]) -> frozenset[int]:
    """Return the positions of allocations that are freed before the next one, as workspaces of cuDNN are."""
    found: set[int] = set()
    last = -1
    for line in lines:
        if line.freed is None:
            last += 1
        elif line.freed == last:
            found.add(last)
    return frozenset(found)


def live_peak(steps: Sequence[AllocationLine], micro_batch: int, optional: Collection[int] = ()) -> int:
    """Return the most bytes that are alive at one time, as if nothing were lost to packing or taken without need."""
    sizes: list[int] = []
    live = peak = 0
    for step in steps:
        if step.freed is None:
            sizes.append(0 if len(sizes) in optional else step.size_at(micro_batch))
            live += sizes[-1]
            peak = max(peak, live)
        else:
            live -= sizes[step.freed]
    return peak


class TrialAllocator(Protocol):
    """An allocator that places the allocations of a trial: PyTorch's own, or a simulated one."""

    def allocate(self, size_bytes: int) -> int | None:
        """Return the address of a new block; None where there is no room."""

    def free(self, address: int) -> None:
        """Give back a block."""

    def retries(self) -> int:
        """Return how often the allocator had to give back its cache."""

    def close(self) -> None:
        """Leave the allocator as it was; everything has been given back."""


@dataclass(frozen=True, slots=True)
class TrialPlacement:
    """The allocations of a trial, as an allocator is asked to place them.

    Attributes:
        plain: Those of a trial whose allocator has not had to give back its cache.
        further: Those of the further steps that a trial takes where it had to.
        optional: Positions of allocations that a step can do without.
        retries: Whether the allocator may give back its cache for more than those.
    """

    plain: list[AllocationLine]
    further: list[AllocationLine]
    optional: frozenset[int]
    retries: bool

    @classmethod
    def of(
        cls, traces: Mapping[int, AllocationTrace], *, retries: bool, has_workspaces: bool = False
    ) -> TrialPlacement | None:
        """Return the placement of a trial at any size.

        Args:
            traces: Trace by micro-batch, of trials that fit.
            retries: Whether the allocator may give back its cache and try again, as it does at the edge.
            has_workspaces: Whether the trials asked for workspaces of cuDNN, which PyTorch can do without.

        Returns:
            None where no two trials did the same at their two sizes.
        """
        found = allocation_lines(traces)
        if found is None:
            return None
        lines = found.with_steps(ANSWER_ITERATIONS) if retries else found.lines
        optional = passing_allocations(lines) if has_workspaces else frozenset[int]()
        return cls(found.lines, lines[len(found.lines) :], optional, retries)

    def largest(self, low: int, high: int, free_bytes: int, allocator: Callable[[], TrialAllocator]) -> int:
        """Return the largest size between `low` and `high` that can be placed in `free_bytes`."""
        return largest_placeable(
            low,
            high,
            is_live_within=lambda size: live_peak(self.plain, size, self.optional) <= free_bytes,
            can_place=lambda size: self.can_place(size, allocator()),
        )

    def can_place(self, micro_batch: int, allocator: TrialAllocator) -> bool:
        """Allocate and free as a trial at `micro_batch` would."""
        live = _LiveAllocations(allocator, self.optional)
        try:
            before = allocator.retries()
            is_placed = live.take(self.plain, micro_batch)
            if is_placed and allocator.retries() > before:
                is_placed = live.take(self.further, micro_batch)
            return is_placed and (self.retries or allocator.retries() - before == live.excused)
        finally:
            live.close()


class _LiveAllocations:
    """Allocations of a trial that are alive.

    Attributes:
        excused: Times that the allocator gave back its cache for what a step can do without.
    """

    def __init__(self, allocator: TrialAllocator, optional: Collection[int]) -> None:
        self._allocator = allocator
        self._optional = optional
        self._addresses: dict[int, int | None] = {}
        self._allocations = 0
        self.excused = 0

    def take(self, lines: Sequence[AllocationLine], micro_batch: int) -> bool:
        """Allocate and free in order; return whether there was room for all that a step needs."""
        for line in lines:
            if line.freed is not None:
                self._free(line.freed)
                continue
            is_optional = self._allocations in self._optional
            before = self._allocator.retries() if is_optional else 0
            address = self._allocator.allocate(line.size_at(micro_batch))
            if is_optional:
                self.excused += self._allocator.retries() - before
            elif address is None:
                return False
            self._addresses[self._allocations] = address
            self._allocations += 1
        return True

    def _free(self, position: int) -> None:
        address = self._addresses.pop(position)
        if address is not None:
            self._allocator.free(address)

    def close(self) -> None:
        """Give back what is left."""
        for position in [*self._addresses]:
            self._free(position)
        self._allocator.close()
