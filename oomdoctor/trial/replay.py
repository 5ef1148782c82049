"""Predict the largest size without training at it: replay a step's allocations on PyTorch's own allocator.

Every allocation of a training step grows by a fixed number of bytes a sample, or not at all. So two trials that fit
tell the size of each allocation at any micro-batch, and allocating and freeing just that, in that order, shows whether
the allocator can place it: its rounding, splitting, fragmentation and retries are the real ones, only the computing is
left out. What is foreseen is never an answer; the search runs it. Runs in the worker.

Source of the events: `torch.cuda.memory._record_memory_history` and `_snapshot`, torch 2.6 to 2.15.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import torch

from oomdoctor.search.prediction import largest_placeable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_MOST_EVENTS = 1_000_000

AllocationTrace = list[int]
"""The allocator's events in order: an allocation is its bytes, a free is -1 less the allocation's position."""


@contextmanager
def record_allocations(trace: AllocationTrace) -> Iterator[None]:
    """Fill `trace` with what the allocator does inside; it stays empty where the inside fails."""
    _record("all")
    try:
        yield
        trace.extend(canonical_order(_read_trace()))
    finally:
        _record(None)


def pack(trace: AllocationTrace) -> str:
    """Return a trace as text that travels quickly; empty for an empty one."""
    return b64encode(array("q", trace).tobytes()).decode("ascii")


def unpack(text: str) -> AllocationTrace:
    """Return the trace that `pack` was given."""
    return list(array("q", b64decode(text)))


def canonical_order(events: Iterable[int]) -> Iterator[int]:
    """Yield the events, with frees that follow each other in the order of their allocations.

    No block is placed between them, so their order changes nothing; and it is no part of a step: autocast lets go of
    its casts in the order of their addresses, which are others in every process.
    """
    for is_free, events_alike in groupby(events, key=lambda event: event < 0):
        run = list(events_alike)
        yield from sorted(run, reverse=True) if is_free else run


def largest_replayable(
    traces: Mapping[int, AllocationTrace], low: int, high: int, allowed_bytes: int, *, retries: bool
) -> int | None:
    """Return the largest size that a replay can place.

    Args:
        traces: Trace by micro-batch, of trials that fit.
        low: A size that fits, or 0.
        high: A size that does not fit, or one above the largest in question.
        allowed_bytes: Bytes that the allocator may hold; it has been told.
        retries: Whether the allocator may give back its cache and try again, as it does at the edge.

    Returns:
        None where no two trials did the same at their two sizes.
    """
    steps = _allocation_lines(traces)
    if steps is None:
        return None
    free_bytes = allowed_bytes - torch.cuda.memory_allocated()
    return largest_placeable(
        low,
        high,
        is_live_within=lambda size: _live_peak(steps, size) <= free_bytes,
        can_place=lambda size: _can_place(steps, size, retries=retries),
    )


@dataclass(frozen=True, slots=True)
class _AllocationLine:
    """An allocation as a line over the micro-batch; or a free, of the allocation at a position."""

    base_bytes: float
    bytes_a_sample: float
    freed: int | None

    def size_at(self, micro_batch: int) -> int:
        return max(1, round(self.base_bytes + self.bytes_a_sample * micro_batch))


def _record(enabled: Literal["all"] | None) -> None:
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled=enabled, context=None, stacks="python", max_entries=_MOST_EVENTS
    )


def _read_trace() -> Iterator[int]:
    """Yield the events since recording began, without those of blocks from before."""
    positions: dict[int, int] = {}
    allocations = 0
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:  # noqa: SLF001
        if event["action"] == "alloc":
            positions[event["addr"]] = allocations
            allocations += 1
            yield event["size"]
        elif event["action"] == "free_completed" and event["addr"] in positions:
            yield -1 - positions.pop(event["addr"])


def _allocation_lines(traces: Mapping[int, AllocationTrace]) -> list[_AllocationLine] | None:
    """Return the allocations as lines through the two largest trials that did the same in the same order."""
    sizes = sorted(traces, reverse=True)
    for index, large in enumerate(sizes):
        for small in sizes[index + 1 :]:
            if _shape(traces[small]) == _shape(traces[large]):
                return [_line(*pair, small, large) for pair in zip(traces[small], traces[large], strict=True)]
    return None


def _shape(trace: AllocationTrace) -> list[int]:
    return [min(event, 0) for event in trace]


def _line(small_event: int, large_event: int, small: int, large: int) -> _AllocationLine:
    if small_event < 0:
        return _AllocationLine(0, 0, -1 - small_event)
    slope = (large_event - small_event) / (large - small)
    return _AllocationLine(small_event - slope * small, slope, None)


def _live_peak(steps: Sequence[_AllocationLine], micro_batch: int) -> int:
    """Return the most bytes that are alive at one time, as if nothing were lost to packing."""
    sizes: list[int] = []
    live = peak = 0
    for step in steps:
        if step.freed is None:
            sizes.append(step.size_at(micro_batch))
            live += sizes[-1]
            peak = max(peak, live)
        else:
            live -= sizes[step.freed]
    return peak


def _can_place(steps: Sequence[_AllocationLine], micro_batch: int, *, retries: bool) -> bool:
    """Allocate and free as a step at `micro_batch` would; memory is as before when this returns."""
    before = _retries()
    stream = torch.cuda.current_stream().cuda_stream
    held: dict[int, int] = {}
    allocations = 0
    try:
        for step in steps:
            if step.freed is None:
                held[allocations] = _allocate(step.size_at(micro_batch), stream)
                allocations += 1
            else:
                _free(held.pop(step.freed))
    except torch.OutOfMemoryError:
        return False
    finally:
        for address in held.values():
            _free(address)
        torch.cuda.empty_cache()
    return retries or _retries() == before


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def _allocate(size_bytes: int, stream: int) -> int:
    address: int = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, stream)  # noqa: SLF001
    return address


def _free(address: int) -> None:
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)  # noqa: SLF001
