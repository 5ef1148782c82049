"""Sizes for a trainer that is set up in this process: its own steps are the trials, on the GPU that it trains on.

What searches is the search of `oomdoctor probe`. A trial here is a few optimizer steps of the trainer itself; after
each the weights, the optimizer, the counters and the random numbers are as before, and so is the memory, which is
checked. `oomdoctor run --gpu rtx-4090 -- python train.py` has the same happen on a null GPU.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.integrations.training_state import TrainingState
from oomdoctor.oom.classifier import Evidence, classify
from oomdoctor.progress import SilentProgress
from oomdoctor.request import DEFAULT_STEPS
from oomdoctor.results import Outcome, Trial, UniformPlan
from oomdoctor.search.growth import ANSWER_ITERATIONS
from oomdoctor.search.probe_search import ProbeSearch, per_device_target, plan_accumulation
from oomdoctor.search.trial_source import TrialNotes, TrialProblem
from oomdoctor.trial.device import begin_trial, capacity_bytes, memory_fraction, workspace_retries, workspaces_given_up
from oomdoctor.trial.trial import await_release, release_memory, set_memory_limit
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_STEPS_RUN: Final = 8
"""Accumulation steps with which a plan is run; more take time and, but for prefetched batches, no more memory."""
_SWALLOWED: Final = "the training step ran out of memory, and its own code caught the error and went on"
_IN_A_PROCESS: Final = (
    "`oomdoctor probe --target-batch N -- python train.py --batch-size {micro_batch}` runs each trial in a process of "
    "its own"
)


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


class Memory(Protocol):
    """The memory that a trainer trains in."""

    def capacity_bytes(self) -> int:
        """Return bytes that PyTorch may take."""

    def begin(self, allowed_bytes: int) -> None:
        """Begin a trial, in which PyTorch may take so many bytes."""

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
                hint=_IN_A_PROCESS,
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

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial; one whose allocator gave back its cache is run again for longer."""
        trial = self._attempt(micro_batch, micro_steps, allowed_bytes, DEFAULT_STEPS)
        if trial.outcome is Outcome.FITS and trial.alloc_retries:
            return self._attempt(micro_batch, micro_steps, allowed_bytes, ANSWER_ITERATIONS)
        return trial

    def predict_max(self, _low: int, _high: int, *, allowed_bytes: int, retries: bool) -> int | None:  # noqa: ARG002 - the protocol's
        """Return None: peaks are all that is measured here."""
        return None

    def forget(self) -> None:
        """Predict nothing from earlier trials, which is so anyway."""

    def _attempt(self, micro_batch: int, micro_steps: int, allowed_bytes: int, steps: int) -> Trial:
        started = time.monotonic()
        self._memory.begin(allowed_bytes)
        try:
            outcome, error = self._train(micro_batch, micro_steps, steps, allowed_bytes)
            usage = self._memory.measured()
        finally:
            self._state.restore()
            self._memory.end(self._trainer.model)
        if usage.ooms and outcome is Outcome.FITS:
            outcome, error = Outcome.OOM, _SWALLOWED
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

    def _train(self, micro_batch: int, micro_steps: int, steps: int, allowed_bytes: int) -> tuple[Outcome, str | None]:
        """Train and return how it ended; the frames of a failed step, and with them its tensors, are gone by then."""
        try:
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
            hint=_IN_A_PROCESS,
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) or loader.batch_sampler is None:
        raise UsageError(
            f"the loader of `{type(loader.dataset).__name__}` has no sampler that makes its batches, so their size "
            "cannot be set",
            hint=f"use a data set with `__getitem__` and `__len__`; or {_IN_A_PROCESS}",
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
