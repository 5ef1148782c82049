"""Predict the largest size without training at it: replay a step's allocations on PyTorch's own allocator.

Every allocation of a training step grows by a fixed number of bytes a sample, or not at all. So two trials that fit
tell the size of each allocation at any micro-batch, and allocating and freeing just that, in that order, shows whether
the allocator can place it: its rounding, splitting, fragmentation and retries are the real ones, only the computing is
left out. What is foreseen is never an answer; the search runs it. Runs in the worker.

Source of the events: `torch.cuda.memory._record_memory_history` and `_snapshot`, torch 2.6 to 2.15.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

from oomdoctor.agent.allocator_blocks import read_trace
from oomdoctor.search.prediction import allocation_lines, largest_placeable, live_peak

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.search.prediction import AllocationLine


_MOST_EVENTS = 1_000_000


@contextmanager
def record_allocations(trace: AllocationTrace) -> Iterator[None]:
    """Fill `trace` with what the allocator does inside; it stays empty where the inside fails."""
    _record("all")
    try:
        yield
        trace.extend(read_trace(torch.cuda.memory._snapshot()["device_traces"][0]))  # noqa: SLF001 - as above
    finally:
        _record(None)


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
    steps = allocation_lines(traces)
    if steps is None:
        return None
    free_bytes = allowed_bytes - torch.cuda.memory_allocated()
    return largest_placeable(
        low,
        high,
        is_live_within=lambda size: live_peak(steps, size) <= free_bytes,
        can_place=lambda size: _can_place(steps, size, retries=retries),
    )


def _record(enabled: Literal["all"] | None) -> None:
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled=enabled, context=None, stacks="python", max_entries=_MOST_EVENTS
    )


def _can_place(steps: Sequence[AllocationLine], micro_batch: int, *, retries: bool) -> bool:
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
