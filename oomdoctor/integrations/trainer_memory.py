"""Memory of a trainer's trials: measured, limited, given back, and foreseen by a replay of earlier allocations."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.trial.device import begin_trial, capacity_bytes, memory_fraction, workspace_retries, workspaces_given_up
from oomdoctor.trial.replay import event_count, largest_replayable, record_allocations
from oomdoctor.trial.trial import await_release, release_memory, set_memory_limit
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.trial.protocol import ReplayTrials

IN_A_PROCESS: Final = (
    "`oomdoctor probe --target-batch N -- python train.py --batch-size {micro_batch}` runs each trial in a process of "
    "its own"
)


class Memory(Protocol):
    """The memory that a trainer trains in."""

    def capacity_bytes(self) -> int:
        """Return bytes that PyTorch may take."""

    def begin(self, allowed_bytes: int) -> None:
        """Begin a trial, in which PyTorch may take so many bytes."""

    def recording(self, trace: AllocationTrace) -> AbstractContextManager[None]:
        """Fill an empty trace with what is allocated inside, where that can be recorded and nothing fails."""

    def predict_max(self, model: torch.nn.Module, question: ReplayTrials) -> int | None:
        """Return the largest size that can be placed; None where no two trials of the question did the same."""

    def measured(self) -> Usage:
        """Return what happened since the trial began."""

    def end(self, model: torch.nn.Module) -> None:
        """Give back what the trial took.

        Raises:
            NoAnswerError: Some of it is still held.
        """


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory during a trial; all but the counts in bytes."""

    allocated: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    free: int = 0
    retries: int = 0
    ooms: int = 0


class CudaMemory:
    """Memory of the GPU, real or null, that is this process's first.

    Args:
        device: Where the model is.

    Raises:
        UsageError: It is no GPU, or not the first.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise UsageError(
                f"the trainer trains on `{device}`, whose memory is not sized",
                hint="train on a GPU, or start the script with `oomdoctor run --gpu rtx-4090 -- python ...`",
            )
        if device.index not in {None, 0}:
            raise UsageError(
                f"the trainer trains on `{device}`, and only the first GPU of a process is sized",
                hint=f"start it with `CUDA_VISIBLE_DEVICES={device.index}`, which makes that one the first",
            )
        torch.cuda.empty_cache()
        self._held = torch.cuda.memory_allocated()
        self._fraction = memory_fraction()
        self._before = Usage()

    def capacity_bytes(self) -> int:
        """Return bytes that PyTorch may take, with those that it holds."""
        total = torch.cuda.get_device_properties(0).total_memory
        return capacity_bytes(int(self._fraction * total) if self._fraction < 1 else None)

    def begin(self, allowed_bytes: int) -> None:
        """Begin a trial, in which PyTorch may take so many bytes."""
        begin_trial()
        set_memory_limit(allowed_bytes)
        torch.cuda.reset_peak_memory_stats()
        self._before = _usage()

    @contextmanager
    def recording(self, trace: AllocationTrace) -> Iterator[None]:
        """Fill an empty trace with what is allocated inside; it stays empty where the program records a history."""
        if torch._C._cuda_isHistoryEnabled():  # noqa: SLF001 - to record anew would end it
            yield
            return
        ends: list[int] = []
        hook = register_optimizer_step_post_hook(lambda *_: ends.append(event_count()))
        try:
            with record_allocations(trace, ends):
                yield
        finally:
            hook.remove()

    def predict_max(self, model: torch.nn.Module, question: ReplayTrials) -> int | None:
        """Return the largest size that PyTorch's own allocator places in a replay; see `Memory`."""
        set_memory_limit(question.allowed_bytes)
        try:
            return largest_replayable(question, model)
        finally:
            torch.cuda.set_per_process_memory_fraction(self._fraction)

    def measured(self) -> Usage:
        """Return what happened since the trial began."""
        now, before = _usage(), self._before
        return replace(now, retries=max(0, now.retries - before.retries), ooms=now.ooms - before.ooms)

    def end(self, model: torch.nn.Module) -> None:
        """Give back what the trial took.

        Raises:
            NoAnswerError: Some of it is still held.
        """
        release_memory(model)
        await_release(model, self._held)
        torch.cuda.set_per_process_memory_fraction(self._fraction)
        left = torch.cuda.memory_allocated() - self._held
        if left > 0:
            raise NoAnswerError(
                f"{format_size(left)} of a trial's memory is still held: some object outside the model, the optimizer "
                "and the trainer keeps tensors of a step",
                hint=IN_A_PROCESS,
            )


def _usage() -> Usage:
    figures = torch.cuda.memory_stats_as_nested_dict()
    return Usage(
        allocated=torch.cuda.memory_allocated(),
        peak_allocated=torch.cuda.max_memory_allocated(),
        peak_reserved=torch.cuda.max_memory_reserved(),
        free=torch.cuda.mem_get_info()[0],
        retries=int(figures.get("num_alloc_retries", 0)) - workspace_retries(),
        ooms=int(figures.get("num_ooms", 0)) - workspaces_given_up(),
    )
