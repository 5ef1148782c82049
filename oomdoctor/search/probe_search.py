"""The search of one probe: it asks a source of trials for sizes, keeps the trials and reports progress."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError
from oomdoctor.results import Outcome, Trial
from oomdoctor.search.accumulation import plan_accumulation
from oomdoctor.search.bracket import SearchResult, find_maximum, find_recommended

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.progress import Progress
    from oomdoctor.results import Accumulation
    from oomdoctor.search.source import Guess, TrialSource, WarmStart


_FIRST_RANGE = 4096
_RANGE_GROWTH = 8
"""Sizes up to the first are searched at once; where all of them fit so many times more, until the target."""


def micro_steps(micro_batch: int, per_device_target: int) -> int:
    """Return the micro-steps of a trial's optimizer step: two where gradients will be accumulated."""
    return 2 if micro_batch < per_device_target else 1


class ProbeSearch:
    """One probe's trials.

    Args:
        source: Runs them.
        progress: Told of each.
        per_device_target: Samples per optimizer step on one device; nothing above it is tried, and below it gradients
            are accumulated.
        warm_start: Guesses what the search will find; None to do without.

    Attributes:
        trials: Every trial, in the order it ran.
    """

    def __init__(
        self, source: TrialSource, progress: Progress, per_device_target: int, warm_start: WarmStart | None = None
    ) -> None:
        self._source = source
        self._progress = progress
        self._per_device_target = per_device_target
        self._warm_start = warm_start
        self._guessed: Guess | None = None
        self._low = 0
        self._high = per_device_target + 1
        self.trials: list[Trial] = []

    def find_maximum(self, gradient_bytes: int) -> SearchResult:
        """Find the largest micro-batch up to the per-device target that fits.

        Args:
            gradient_bytes: Bytes of all gradients, which only accumulation keeps alive during a forward.

        Raises:
            TargetError: A size failed for a reason that is not memory.
            NoAnswerError: It failed because the null GPU cannot do what it asks for.
        """
        search = self._search_up_to(min(self._per_device_target, _FIRST_RANGE))
        while search.limited_by == "target" and search.maximum < self._per_device_target and search.failed is None:
            # Nothing far above what is known is tried: a batch of that size may not even fit the host.
            search = self._search_up_to(min(self._per_device_target, search.maximum * _RANGE_GROWTH))
        if search.failed is not None:
            raise self._failure(search.failed)
        return self._try_whole_target(search, gradient_bytes)

    def _search_up_to(self, largest: int) -> SearchResult:
        return find_maximum(
            lambda size: self._run(size, self._source.capacity_bytes),
            largest=largest,
            capacity_bytes=self._source.capacity_bytes,
            known=self.trials,
            predict_max=lambda low, high: self._source.predict_max(
                low, high, allowed_bytes=self._source.capacity_bytes, retries=True
            ),
            guess=self._guess if self._warm_start else None,
        )

    def _guess(self) -> int | None:
        if self._warm_start is not None:
            self._guessed = self._warm_start.guess(self._source.capacity_bytes)
        return None if self._guessed is None else self._guessed.maximum

    def check_plan(self, plan: Accumulation) -> bool:
        """Return whether no micro-batch of the plan runs out of memory; run those that were not run yet."""
        for size in sorted(set(plan.micro_batches), reverse=True):
            seen = [trial for trial in self.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
            if not seen and self._run(size, self._source.capacity_bytes).outcome in (Outcome.OOM, Outcome.LIMIT):
                return False
        return True

    def _try_whole_target(self, search: SearchResult, gradient_bytes: int) -> SearchResult:
        """Try the target in one micro-batch: without accumulated gradients it may fit where smaller sizes do not."""
        target, maximum = self._per_device_target, search.maximum
        at_maximum = next((trial for trial in self.trials if trial.micro_batch == maximum), None)
        if at_maximum is None or search.limited_by != "memory" or any(t.micro_batch == target for t in self.trials):
            return search
        growth = ((at_maximum.peak_allocated_bytes or 0) - (at_maximum.fixed_bytes or 0)) / maximum
        if (target - maximum) * growth > gradient_bytes:
            return search
        if self._run(target, self._source.capacity_bytes).outcome is not Outcome.FITS:
            return search
        note = f"{target} fits because nothing is accumulated then; with accumulation the largest is {maximum}"
        return replace(search, maximum=target, successor=None, limited_by="target", notes=(*search.notes, note))

    def try_smallest(self) -> Trial:
        """Run one trial at the smallest size that the model accepts.

        Raises:
            TargetError: It accepts neither one sample nor two.
            NoAnswerError: The null GPU cannot do what it asks for.
        """
        trial = self._run(1, self._source.capacity_bytes)
        if trial.outcome is Outcome.FAILED:  # a batch norm needs two
            trial = self._run(2, self._source.capacity_bytes)
        if trial.outcome is Outcome.FAILED:
            raise self._failure(trial)
        return trial

    def find_recommended(self, search: SearchResult, headroom: float) -> int:
        """Find the largest tested size that fits with `headroom` of the capacity withheld, and not at its edge."""
        allowed = int(self._source.capacity_bytes * (1 - headroom))

        def predict_max(low: int, high: int) -> int | None:
            # A warm start that was right about the maximum knows the step well enough.
            if self._guessed and self._guessed.maximum == search.maximum and low < self._guessed.recommended < high:
                return self._guessed.recommended
            return self._source.predict_max(low, high, allowed_bytes=allowed, retries=False)

        return find_recommended(
            lambda size: self._run(size, allowed), search=search, allowed_bytes=allowed, predict_max=predict_max
        )

    def tried(self, micro_batch: int, steps: int) -> Trial:
        """Return a trial of a size with so many micro-batches in a step; run it where none that fits was seen."""
        seen = [trial for trial in self.trials if trial.micro_batch == micro_batch and trial.outcome is Outcome.FITS]
        if seen and steps <= micro_steps(micro_batch, self._per_device_target):
            return seen[-1]
        return self._run(micro_batch, self._source.capacity_bytes, steps)

    def try_profiled(self, size: int | None, maximum: int) -> None:
        """Run the size whose memory is asked for, with all memory, where the search did not and it can fit.

        Where nothing tells what memory is made of, its peaks and phases are those of this trial.
        """
        if size is not None and size <= maximum:
            self.tried(size, micro_steps(size, self._per_device_target))

    def _run(self, micro_batch: int, allowed_bytes: int, steps: int | None = None) -> Trial:
        steps = steps or micro_steps(micro_batch, self._per_device_target)
        return self.record(
            micro_batch,
            lambda: self._source.run(micro_batch, micro_steps=steps, allowed_bytes=allowed_bytes),
        )

    def record(self, micro_batch: int, run: Callable[[], Trial]) -> Trial:
        """Have a trial run, and count it among those of the probe.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: A crash or the time limit.
        """
        self._progress.trial_started(micro_batch, self._low, self._high)
        trial = run()
        if trial.outcome is Outcome.FITS:
            self._low = max(self._low, micro_batch)
        elif trial.allowed_bytes >= self._source.capacity_bytes:  # what does not fit with headroom withheld may yet fit
            self._high = min(self._high, micro_batch)
        self.trials.append(trial)
        self._progress.trial_finished(trial)
        return trial

    def _failure(self, trial: Trial) -> OomdoctorError:
        fitting = [other.micro_batch for other in self.trials if other.outcome is Outcome.FITS]
        contrast = f", and {max(fitting)} does not" if fitting else ""
        problem = self._source.notes.problem
        if problem is not None and problem.kind == NoAnswerError.__name__:
            return problem.error()
        hint = None if problem is None else problem.hint
        return TargetError(
            f"micro-batch {trial.micro_batch} fails{contrast}: {trial.error}",
            details=None if problem is None else problem.details,
            hint=hint or "this is not an out-of-memory error; mend it and probe again",
        )


def tested_plan(
    search: ProbeSearch, target_batch: int, world_size: int, *, maximum: int, recommended: int
) -> Accumulation | None:
    """Return a plan whose every micro-batch was run.

    Near the maximum fitting is not monotone: a size may fit because its blocks happen to be whole pages, and the one
    below it not. Then the next plan is that of the recommended size, which fits without any luck.
    """
    limit = maximum
    while limit > 0:
        plan = plan_accumulation(target_batch, limit, world_size)
        if search.check_plan(plan):
            return plan
        limit = recommended if recommended < limit else limit * 9 // 10
    return None
