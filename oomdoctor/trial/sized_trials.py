"""Run the trials that differ in another size than the micro-batch, such as a sequence length. Runs in the worker."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from oomdoctor.errors import TargetError, UsageError
from oomdoctor.results import Outcome, Trial
from oomdoctor.target.contract import make_one_batch
from oomdoctor.target.placement import BatchShape
from oomdoctor.target.sizes import model_takes, with_sizes
from oomdoctor.trial.inference import check_length
from oomdoctor.trial.loading import HOST_ROOM, build_where_room_is
from oomdoctor.trial.meters import TrialMeter
from oomdoctor.trial.step import is_about_size
from oomdoctor.trial.trial import Attempt, run_trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import Bucket, SearchedSize, Variant
    from oomdoctor.target.contract import Target
    from oomdoctor.trial.protocol import RunTrial
    from oomdoctor.trial.step import TrialSetup


class Trials(Protocol):
    """Runs trials whose size is not a micro-batch.

    Attributes:
        assumptions: What the trials assumed that others of their target do not, by the names of results.
    """

    assumptions: tuple[str, ...]

    def run(self, question: RunTrial, meter: TrialMeter | None = None) -> Attempt:
        """Run one trial.

        Args:
            question: Its size.
            meter: Measures it; None for a plain one.

        Raises:
            TargetError: The user's file does not keep the contract.
        """


def trials_of(variant: Variant, plain: Target, setup: TrialSetup) -> Trials | None:
    """Return what runs a variant's trials; None where their size is the micro-batch.

    Args:
        variant: The variant.
        plain: The user's functions, without sizes.
        setup: The setup of the smallest size, or of the buckets' largest sizes.
    """
    if variant.searched is not None:
        return SizedTrials(plain, setup, variant.searched)
    return BucketTrials(setup, variant.buckets) if variant.buckets else None


class SizedTrials:
    """Runs a trial of any size at the one micro-batch.

    Where `build_model` takes the size as well, each trial builds a model of its own and begins with placing it.

    Args:
        plain: The user's functions, without sizes.
        setup: The setup of the smallest size; its model leaves the device where each size has a model of its own.
        searched: The size.

    Raises:
        UsageError: Each size has a model of its own, and the model is divided over devices.
    """

    def __init__(self, plain: Target, setup: TrialSetup, searched: SearchedSize) -> None:
        self.assumptions: tuple[str, ...] = ()
        self._plain = plain
        self._setup = setup
        self._searched = searched
        self._rebuilds = setup.variant.generation is None and model_takes(plain, searched.name)
        if self._rebuilds and not setup.placement.is_whole:
            raise UsageError(
                f"`build_model` takes `{searched.name}`, and the model of a rank, or on several devices, is built once",
                hint=f"ask at each size: `--over {searched.name}=...`",
            )
        if self._rebuilds:
            setup.placement.leave(setup.model)

    def run(self, question: RunTrial, meter: TrialMeter | None = None) -> Attempt:
        """Run one trial, whose size counts multiples of the searched size.

        Raises:
            TargetError: The user's file does not keep the contract.
        """
        target = with_sizes(self._plain, self._setup.variant.sizes_at(question.micro_batch))
        variant = self._setup.variant.generating(question.micro_batch)
        setup = replace(self._setup, target=target, variant=variant)
        if variant.generation is not None:
            try:
                check_length(setup.model, variant.generation)
            except TargetError as problem:
                return _not_built(question, problem)
        if self._rebuilds:
            try:
                model, placement = build_where_room_is(target, setup.changes, setup.placement)
            except TargetError as problem:
                return _not_built(question, problem)
            if placement.told:
                self.assumptions = (HOST_ROOM,)
            setup = replace(setup, model=model.train(), placement=placement, places_model=True)
        attempt = run_trial(setup, replace(question, micro_batch=self._searched.micro_batch), meter)
        return replace(attempt, trial=replace(attempt.trial, micro_batch=question.micro_batch))


def _not_built(question: RunTrial, problem: TargetError) -> Attempt:
    """Return the trial of a size that `build_model`, or the model, cannot have."""
    trial = Trial(question.micro_batch, Outcome.FAILED, question.allowed_bytes, error=problem.message)
    return Attempt(
        trial,
        problem,
        TrialMeter().trace,
        loss_is_finite=True,
        zeros_read=0,
        unknown_reads=(),
        optimizer_name="",
        memory_fraction=1.0,
        ends=(),
        is_fresh=True,
    )


class BucketTrials:
    """Runs trials that train on a batch of each bucket, largest first, and then on all of them shuffled.

    Batches of several sizes leave free blocks of several sizes behind, so that what fits alone may run out here.

    Args:
        setup: The setup of the largest sizes, whose model all buckets share.
        buckets: The buckets.
    """

    def __init__(self, setup: TrialSetup, buckets: tuple[Bucket, ...]) -> None:
        self.assumptions: tuple[str, ...] = ()
        self._setup = setup
        self._buckets = sorted(buckets, key=lambda bucket: -math.prod(axis.size for axis in bucket.sizes))
        self._running = self._buckets[0]

    def run(self, question: RunTrial, meter: TrialMeter | None = None) -> Attempt:
        """Run one trial, whose size is a percentage of each bucket's samples.

        Raises:
            TargetError: The user's file does not keep the contract.
        """
        batches = self._batches(question.micro_batch)
        target = replace(self._setup.target, make_batch=lambda _size, **_sizes: next(batches))
        setup = replace(self._setup, target=target, shape=BatchShape())
        steps = math.ceil(2 * len(self._buckets) / question.micro_steps)
        attempt = run_trial(setup, replace(question, micro_batch=1, iterations=steps), meter)
        trial = replace(attempt.trial, micro_batch=question.micro_batch)
        if trial.outcome is not Outcome.FITS:
            at = ", ".join(f"{axis.name} {axis.size}" for axis in self._running.sizes)
            trial = replace(trial, error=f"in the bucket of {at}: {trial.error}")
        return replace(attempt, trial=trial)

    def _batches(self, percent: int) -> Iterator[object]:
        shuffled = random.Random(0).sample(self._buckets, len(self._buckets))  # noqa: S311 - no secret
        for bucket in itertools.cycle([*self._buckets, *shuffled]):
            self._running = bucket
            sizes = {axis.name: axis.size for axis in bucket.sizes}
            target = replace(self._setup.target, sizes={**self._setup.target.sizes, **sizes})
            yield make_one_batch(target, max(1, bucket.micro_batch * percent // 100), passes=is_about_size)
