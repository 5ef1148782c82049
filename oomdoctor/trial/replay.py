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
from oomdoctor.search.allocation_lines import TrialPlacement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace
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
    traces = {trial.micro_batch: unpack(trial.allocations) for trial in question.trials}
    has_workspaces = any(isinstance(module, _ConvNd) for module in model.modules())
    placement = TrialPlacement.of(traces, retries=question.retries, has_workspaces=has_workspaces)
    if placement is None:
        return None
    free_bytes = question.allowed_bytes - torch.cuda.memory_allocated()
    return placement.largest(question.low, question.high, free_bytes, _TorchAllocator)


def _record(enabled: Literal["all"] | None) -> None:
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled=enabled, context=None, stacks="python", max_entries=_MOST_EVENTS
    )


def event_count() -> int:
    """Return the allocations and frees of this process so far."""
    statistics = torch.cuda.memory_stats()
    return sum(int(statistics.get(f"allocation.all.{what}", 0)) for what in ("allocated", "freed"))


class _TorchAllocator:
    """Allocates and frees on PyTorch's own allocator."""

    def __init__(self) -> None:
        self._stream = torch.cuda.current_stream().cuda_stream

    def allocate(self, size_bytes: int) -> int | None:
        try:
            address: int = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, self._stream)  # noqa: SLF001
        except torch.OutOfMemoryError:
            return None
        return address

    def free(self, address: int) -> None:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)  # noqa: SLF001

    def retries(self) -> int:
        statistics = torch.cuda.memory_stats_as_nested_dict()  # not flattened: 200 µs less
        return int(statistics.get("num_alloc_retries", 0))

    def close(self) -> None:
        torch.cuda.empty_cache()
