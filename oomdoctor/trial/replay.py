"""Predict the largest size without training at it: replay a step's allocations on PyTorch's own allocator.

Every allocation of a training step grows by a fixed number of bytes a sample, or not at all. So two trials that fit
tell the size of each allocation at any micro-batch, and allocating and freeing just that, in that order, shows whether
the allocator can place it: its rounding, splitting, fragmentation and retries are the real ones, only the computing is
left out. Where it had to give back its cache, the last step is replayed until there are as many as a trial takes then.
What is foreseen is never an answer; the search runs it. Runs in the worker.

Source of the events: `torch.cuda.memory._record_memory_history` and `_snapshot`, torch 2.6 to 2.15.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn.modules.conv import _ConvNd

from oomdoctor.agent.allocator_blocks import read_trace, unpack
from oomdoctor.search.allocation_lines import allocation_lines, largest_placeable, live_peak, passing_allocations
from oomdoctor.search.growth import ANSWER_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.search.allocation_lines import AllocationLine
    from oomdoctor.trial.protocol import ReplayTrials


_MOST_EVENTS = 1_000_000


@contextmanager
def record_allocations(trace: AllocationTrace, step_ends: Sequence[int] = ()) -> Iterator[None]:
    """Fill `trace` with what the allocator does inside; it stays empty where the inside fails.

    Args:
        trace: An empty one.
        step_ends: What `event_count` returned at the end of each optimizer step.
    """
    before = event_count()
    _record("all")
    try:
        yield
        events = torch.cuda.memory._snapshot()["device_traces"][0]  # noqa: SLF001 - as above
        trace.extend(read_trace(events, [count - before for count in step_ends]))
    finally:
        _record(None)


def largest_replayable(question: ReplayTrials, model: torch.nn.Module) -> int | None:
    """Return the largest size that a replay can place; the allocator has been told how much it may hold.

    Args:
        question: The trials and the bounds.
        model: What they trained; PyTorch can do without the workspaces of convolutions.

    Returns:
        None where no two trials did the same at their two sizes.
    """
    found = allocation_lines({trial.micro_batch: unpack(trial.allocations) for trial in question.trials})
    if found is None:
        return None
    free_bytes = question.allowed_bytes - torch.cuda.memory_allocated()
    lines = found.with_steps(ANSWER_ITERATIONS if question.retries else found.steps)
    has_workspaces = any(isinstance(module, _ConvNd) for module in model.modules())
    optional = passing_allocations(lines) if has_workspaces else frozenset()
    return largest_placeable(
        question.low,
        question.high,
        is_live_within=lambda size: live_peak(found.lines, size, optional) <= free_bytes,
        can_place=lambda size: _can_place(lines, size, len(found.lines), optional, retries=question.retries),
    )


def _record(enabled: Literal["all"] | None) -> None:
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled=enabled, context=None, stacks="python", max_entries=_MOST_EVENTS
    )


def _can_place(
    lines: Sequence[AllocationLine], micro_batch: int, plain: int, optional: Collection[int], *, retries: bool
) -> bool:
    """Allocate and free as a trial at `micro_batch` would; memory is as before when this returns.

    Args:
        lines: Allocations and frees.
        micro_batch: The size.
        plain: Number of those after which a trial ends whose allocator has not had to give back its cache.
        optional: Positions of allocations that a step can do without.
        retries: Whether the allocator may give back its cache for more than those.
    """
    before, excused = _retries(), 0
    stream = torch.cuda.current_stream().cuda_stream
    held: dict[int, int | None] = {}
    allocations = 0
    try:
        for position, line in enumerate(lines):
            if position == plain and _retries() == before:
                break
            if line.freed is None:
                if allocations in optional:
                    earlier = _retries()
                    held[allocations] = _allocate_optional(line.size_at(micro_batch), stream)
                    excused += _retries() - earlier
                else:
                    held[allocations] = _allocate(line.size_at(micro_batch), stream)
                allocations += 1
            else:
                _free(held.pop(line.freed))
    except torch.OutOfMemoryError:
        return False
    finally:
        for address in held.values():
            _free(address)
        torch.cuda.empty_cache()
    return retries or _retries() - before == excused


def _retries() -> int:
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))  # not flattened: 200 µs less


def event_count() -> int:
    """Return the allocations and frees of this process so far."""
    statistics = torch.cuda.memory_stats()
    return sum(int(statistics.get(f"allocation.all.{what}", 0)) for what in ("allocated", "freed"))


def _allocate(size_bytes: int, stream: int) -> int:
    address: int = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, stream)  # noqa: SLF001
    return address


def _allocate_optional(size_bytes: int, stream: int) -> int | None:
    """Allocate and return the address; None where there is no room."""
    try:
        return _allocate(size_bytes, stream)
    except torch.OutOfMemoryError:
        return None


def _free(address: int | None) -> None:
    if address is not None:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)  # noqa: SLF001
