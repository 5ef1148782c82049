"""Sizes for a trainer that is set up in this process: its own steps are the trials, on the GPU that it trains on.

What searches is the search of `oomdoctor probe`. A trial here is a few optimizer steps of the trainer itself; after
each the weights, the optimizer, the counters and the random numbers are as before, and so is the memory, which is
checked. `oomdoctor run --gpu rtx-4090 -- python train.py` has the same happen on a null GPU.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from oomdoctor.agent.allocator_blocks import pack
from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.integrations.trainer_memory import IN_A_PROCESS
from oomdoctor.integrations.training_state import TrainingState
from oomdoctor.oom.classifier import Evidence, classify
from oomdoctor.progress import SilentProgress
from oomdoctor.request import DEFAULT_STEPS
from oomdoctor.results import Outcome, Trial, UniformPlan
from oomdoctor.search.growth import ANSWER_ITERATIONS
from oomdoctor.search.probe_search import ProbeSearch, per_device_target, plan_accumulation
from oomdoctor.search.trial_source import TrialNotes, TrialProblem
from oomdoctor.trial.protocol import ReplayTrials, TrialAllocations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.agent.allocator_blocks import AllocationTrace
    from oomdoctor.integrations.trainer_memory import Memory


_MOST_STEPS_RUN: Final = 8
"""Accumulation steps with which a plan is run; more take time and, but for prefetched batches, no more memory."""
_SWALLOWED: Final = "the training step ran out of memory, and its own code caught the error and went on"


class Trainer(Protocol):
    """A trainer that is set up and has not begun.

    Attributes:
        model: What it trains, on the GPU.
    """

    model: torch.nn.Module

    def roots(self) -> Sequence[object]:
        """Return the objects that hold all that training changes."""

    def train(self, micro_batch: int, micro_steps: int, steps: int) -> None:
        """Train so many optimizer steps of so many micro-batches each, without logs, checkpoints or evaluations."""


@dataclass(frozen=True, slots=True)
class FoundSize:
    """The sizes of a trainer.

    Attributes:
        plan: Micro-batch, accumulation steps, and the effective batch that they make, which is the target.
        maximum: Largest micro-batch up to the target that fits.
        trials: Every trial, in the order it ran.
    """

    plan: UniformPlan
    maximum: int
    trials: tuple[Trial, ...]


def find_size(trainer: Trainer, memory: Memory, *, target_batch: int, samples: int, headroom: float = 0.0) -> FoundSize:
    """Find the micro-batch and the accumulation steps that reach a target batch exactly.

    Args:
        trainer: The trainer.
        memory: What it trains in.
        target_batch: Samples per optimizer step.
        samples: Samples of the data set.
        headroom: Part of the memory that stays free, in [0, 1).

    Raises:
        UsageError: The target is no number of samples, more than the data set has, or one that no fixed size reaches.
        TargetError: A step fails for another reason than memory.
        NoAnswerError: Not one sample fits, or memory of a trial stays held.
    """
    share = per_device_target(target_batch)
    if share > samples:
        raise UsageError(
            f"target batch {share} is more than the {samples} samples of the training data",
            hint=f"pass a target batch of {samples} or less",
        )
    if not 0 <= headroom < 1:
        raise UsageError(f"headroom {headroom} is no part of the memory", hint="pass a number in [0, 1), such as 0.05")
    trials = _TrainerTrials(trainer, memory, headroom)
    search = ProbeSearch(trials, SilentProgress(), share)
    found = search.find_maximum(sum(each.nbytes for each in trainer.model.parameters() if each.requires_grad))
    if not found.maximum:
        error = next((trial.error for trial in search.trials if trial.error), "the model alone does not")
        raise NoAnswerError(
            f"no micro-batch fits: {error}", hint="`oomdoctor prescribe` measures what makes a model smaller"
        )
    return FoundSize(_tested_plan(search, share, found.maximum), found.maximum, tuple(search.trials))


def _tested_plan(search: ProbeSearch, target_batch: int, maximum: int) -> UniformPlan:
    limit = maximum
    while limit:
        plan = _fixed_plan(target_batch, limit)
        if plan is None:
            raise UsageError(
                f"target batch {target_batch} has no divisor near {limit}, the largest micro-batch that fits, and a "
                "trainer takes one size for all",
                hint=f"the nearest target batches that have: {_nearest(target_batch, limit)}",
            )
        if search.tried(plan.micro_batch, min(plan.steps, _MOST_STEPS_RUN)).outcome is Outcome.FITS:
            return plan
        limit = plan.micro_batch - 1
    raise NoAnswerError("no plan that was run fits", hint="leave some memory free with `headroom=0.05`")


def _fixed_plan(target_batch: int, maximum: int) -> UniformPlan | None:
    """Return the plan with the largest size that divides the target; None where it takes twice the steps or more."""
    steps = plan_accumulation(target_batch, maximum).steps
    counts = (count for count in range(steps, 2 * steps) if target_batch % count == 0)
    return next((UniformPlan(target_batch // count, count, target_batch) for count in counts), None)


def _nearest(target_batch: int, maximum: int) -> str:
    """Return the next targets below and above that a fixed size reaches."""
    found = []
    for step in (-1, 1):
        size = target_batch + step
        while _fixed_plan(size, maximum) is None:
            size += step
        found.append(str(size))
    return " and ".join(found)


class _TrainerTrials:
    """Trials of a trainer, as `oomdoctor.search.trial_source.TrialSource` says."""

    def __init__(self, trainer: Trainer, memory: Memory, headroom: float) -> None:
        self._trainer = trainer
        self._memory = memory
        self._state = TrainingState(*trainer.roots())
        self.capacity_bytes = int(memory.capacity_bytes() * (1 - headroom))
        self.notes = TrialNotes()
        self._traces: dict[int, AllocationTrace] = {}
        self._tight_traces: dict[int, AllocationTrace] = {}

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial; one whose allocator gave back its cache is run again for longer."""
        trial = self._attempt(micro_batch, micro_steps, allowed_bytes, DEFAULT_STEPS)
        if trial.outcome is Outcome.FITS and trial.alloc_retries:
            return self._attempt(micro_batch, micro_steps, allowed_bytes, ANSWER_ITERATIONS)
        return trial

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """Predict by a replay of the earlier trials' allocations; None where no two of them can be replayed."""
        # At the edge a step may do without workspaces, and sizes lie side by side: a line through others is better.
        found = self._traces if len(self._traces) > 1 else self._tight_traces | self._traces
        if len(found) < 2:  # noqa: PLR2004 - a line needs two points
            return None
        trials = tuple(TrialAllocations(size, pack(trace)) for size, trace in found.items())
        return self._memory.predict_max(self._trainer.model, ReplayTrials(trials, low, high, allowed_bytes, retries))

    def forget(self) -> None:
        """Forget the allocations of the trials so far."""
        self._traces.clear()
        self._tight_traces.clear()

    def _attempt(self, micro_batch: int, micro_steps: int, allowed_bytes: int, steps: int) -> Trial:
        started, trace = time.monotonic(), list[int]()
        self._memory.begin(allowed_bytes)
        try:
            outcome, error = self._train(micro_batch, micro_steps, steps, allowed_bytes, trace)
            usage = self._memory.measured()
        finally:
            self._state.restore()
            self._memory.end(self._trainer.model)
        if usage.ooms and outcome is Outcome.FITS:
            outcome, error = Outcome.OOM, _SWALLOWED
        if trace and outcome is Outcome.FITS:
            (self._tight_traces if usage.retries else self._traces)[micro_batch] = trace
        return Trial(
            micro_batch=micro_batch,
            outcome=outcome,
            allowed_bytes=allowed_bytes,
            peak_allocated_bytes=usage.peak_allocated,
            peak_reserved_bytes=usage.peak_reserved,
            fixed_bytes=usage.allocated if outcome is Outcome.FITS else None,
            alloc_retries=usage.retries,
            error=error,
            seconds=time.monotonic() - started,
        )

    def _train(
        self, micro_batch: int, micro_steps: int, steps: int, allowed_bytes: int, trace: AllocationTrace
    ) -> tuple[Outcome, str | None]:
        """Train and return how it ended; the frames of a failed step, and with them its tensors, are gone by then."""
        try:
            with self._memory.recording(trace):
                self._trainer.train(micro_batch, micro_steps, steps)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is an outcome
            usage = self._memory.measured()
            outcome = classify(error, Evidence(usage.free, allowed_bytes, usage.ooms)).outcome
            if outcome is Outcome.FAILED:
                details = "".join(traceback.format_exception(error))
                self.notes.problem = TrialProblem.of(TargetError(_summary(error), details=details))
            for link in walk_chain(error):
                traceback.clear_frames(link.__traceback__)
            return outcome, str(error).strip() if outcome is not Outcome.FAILED else _summary(error)
        return Outcome.FITS, None


def _summary(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def indices_of(loader: Any, indices: Sequence[int] | None) -> Sequence[int]:  # noqa: ANN401 - what the user's code gave
    """Return the samples to make batches of.

    Args:
        loader: Training data.
        indices: Those that the user names, such as the longest; None for all in order.

    Raises:
        UsageError: It is no loader whose batches a sampler makes, or has no sample, or none of an index.
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise UsageError(
            f"the training data is a `{type(loader).__name__}`, and one `torch.utils.data.DataLoader` is sized",
            hint=IN_A_PROCESS,
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
        raise UsageError(
            f"the loader of `{type(loader.dataset).__name__}` has no sampler that makes its batches, so their size "
            "cannot be set",
            hint=f"use a data set with `__getitem__` and `__len__`; or {IN_A_PROCESS}",
        )
    found = range(len(loader.dataset)) if indices is None else indices  # type: ignore[arg-type]
    if not found:
        raise UsageError("there is no sample to make batches of", hint="give the trainer some training data")
    size = len(loader.dataset)  # type: ignore[arg-type]
    if beyond := [index for index in found if not -size <= index < size]:
        raise UsageError(
            f"`samples` names {beyond[0]}, and the training data have {size} samples",
            hint="give indices of the data set, from 0",
        )
    return found
