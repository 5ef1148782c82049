"""The search of one probe: the trials that it asks for, and the plan.

The plan reaches the target batch with micro-batches that fit: exactly, and as evenly as whole samples allow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.results import Accumulation, Outcome, Trial, UniformPlan
from oomdoctor.search.bracket import FIRST_SIZE, SearchResult, find_maximum
from oomdoctor.search.recommended import find_recommended
from oomdoctor.units import LARGEST_MICRO_BATCH, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oomdoctor.errors import OomdoctorError
    from oomdoctor.progress import Progress
    from oomdoctor.results import SearchedSize
    from oomdoctor.search.prediction import Guess, WarmStart
    from oomdoctor.search.trial_source import TrialSource


# A uniform plan may take this many times the steps of the even one before its plain loop is not worth its time.
_UNIFORM_STEPS = 1.25
# A plan lists every micro-batch; beyond this many samples it would be longer than anybody can read or train.
LARGEST_TARGET = 10_000_000


def per_device_target(target_batch: int, world_size: int = 1) -> int:
    """Return samples per optimizer step on one device.

    Args:
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share it.

    Raises:
        UsageError: A number is no integer, below 1 or absurd, or the devices cannot share the target evenly.
    """
    target_batch, world_size = whole_number("target_batch", target_batch), _devices(world_size)
    if target_batch < 1:
        raise UsageError(
            f"target batch {target_batch} is not a number of samples",
            hint="pass the samples per optimizer step over all devices, 1 or more",
        )
    if target_batch > LARGEST_TARGET:
        raise UsageError(
            f"target batch {target_batch} is more than {LARGEST_TARGET:,} samples in one optimizer step",
            hint="the target is what one step of the optimizer sees, not an epoch",
        )
    share, rest = divmod(target_batch, world_size)
    if rest:
        below, above = target_batch - rest, target_batch - rest + world_size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise UsageError(
            f"target batch {target_batch} does not divide by world size {world_size}",
            hint=f"the nearest that divides: {nearest}",
        )
    return share


def _devices(world_size: int) -> int:
    world_size = whole_number("world_size", world_size)
    if world_size < 1:
        raise UsageError(
            f"world size {world_size} is not a number of devices", hint="pass the number of GPUs that train, 1 or more"
        )
    return world_size


def share_of(target_batch: int | None, world_size: int = 1) -> int | None:
    """Return samples per optimizer step on one device; None without a target batch, where nothing is accumulated.

    Raises:
        UsageError: As `per_device_target`; or there are several devices and no target batch that they share.
    """
    if target_batch is not None:
        return per_device_target(target_batch, world_size)
    if _devices(world_size) != 1:
        raise UsageError(
            f"world size {world_size} shares a target batch, and none is given",
            hint="add the target batch, or drop the world size: without a target each device is asked about alone",
        )
    return None


def plan_accumulation(target_batch: int, maximum: int, world_size: int = 1) -> Accumulation:
    """Plan the micro-batches of one optimizer step.

    Args:
        target_batch: Samples per optimizer step over all devices.
        maximum: Largest micro-batch that fits one device.
        world_size: Devices that share the target.

    Returns:
        The fewest steps that reach the target, with micro-batches that differ by at most one, largest first.

    Raises:
        UsageError: A number is no integer or below 1, or the devices cannot share the target evenly.
    """
    share = per_device_target(target_batch, world_size)
    target_batch, world_size = share * int(world_size), int(world_size)  # NumPy's are not for a document
    maximum = whole_number("maximum", maximum)
    if maximum < 1:
        raise UsageError(
            f"no plan reaches target batch {target_batch} with a largest micro-batch of {maximum}",
            hint="a plan needs a micro-batch of at least one sample that fits",
        )
    steps = -(-share // maximum)
    size, larger = divmod(share, steps)
    micro_batches = (size + 1,) * larger + (size,) * (steps - larger)
    fixed = micro_batches[0]
    return Accumulation(
        target_batch=target_batch,
        world_size=world_size,
        steps=steps,
        micro_batches=micro_batches,
        effective_batch=sum(micro_batches) * world_size,
        uniform=_uniform_plan(target_batch, share, maximum, steps),
        fixed_size=UniformPlan(fixed, steps, fixed * steps * world_size),
    )


def _uniform_plan(target_batch: int, share: int, maximum: int, steps: int) -> UniformPlan | None:
    """Return the plan with the largest size that divides the share, unless it takes too many steps."""
    # Divisors of the share are its quotients by step counts: the fewest steps that divide it give the largest size.
    for count in range(steps, int(steps * _UNIFORM_STEPS) + 1):
        if share % count == 0 and share // count <= maximum:
            return UniformPlan(share // count, count, target_batch)
    return None


_FIRST_RANGE = 4096
_RANGE_GROWTH = 8
"""Sizes up to the first are searched at once; where all of them fit so many times more, until the target."""


def micro_steps(micro_batch: int, per_device_target: int | None) -> int:
    """Return the micro-steps of a trial's optimizer step: two where gradients will be accumulated to reach a target."""
    return 2 if per_device_target is not None and micro_batch < per_device_target else 1


def largest_searched(searched: SearchedSize) -> int:
    """Return the most multiples of a searched size that are tried."""
    return LARGEST_MICRO_BATCH if searched.up_to is None else searched.up_to // searched.multiple_of


def limit_notes(trials: Iterable[Trial], limited_by: str, searched: SearchedSize) -> Iterator[str]:
    """Yield what a limit that is not memory was, in the words of the trial that met it."""
    met = [trial for trial in trials if trial.outcome is Outcome.LIMIT]
    if limited_by == "limit" and met:
        first = min(met, key=lambda trial: trial.micro_batch)
        yield f"{searched.name} {first.micro_batch * searched.multiple_of}: {first.error}"


class ProbeSearch:
    """One probe's trials.

    Args:
        source: Runs them.
        progress: Told of each.
        per_device_target: Samples per optimizer step on one device; nothing above it is tried, and below it gradients
            are accumulated. None for steps of one micro-batch, however large.
        warm_start: Guesses what the search will find; None to do without.
        searched: The size that is searched where that is not the micro-batch; its trials' sizes count its multiples,
            and all of them accumulate where its micro-batch is below the target.

    Attributes:
        trials: Every trial, in the order it ran.
    """

    def __init__(
        self,
        source: TrialSource,
        progress: Progress,
        per_device_target: int | None,
        warm_start: WarmStart | None = None,
        *,
        searched: SearchedSize | None = None,
    ) -> None:
        self._source = source
        self._progress = progress
        self._per_device_target = None if searched else per_device_target
        self._searched = searched
        self._steps = None if searched is None else micro_steps(searched.micro_batch, per_device_target)
        self._largest = self._per_device_target or (
            LARGEST_MICRO_BATCH if searched is None else largest_searched(searched)
        )
        self._warm_start = warm_start
        self._guessed: Guess | None = None
        self._low = 0
        self._high = self._largest + 1
        self.trials: list[Trial] = []

    @property
    def first_size(self) -> int:
        """Size that is tried first."""
        return min(FIRST_SIZE, self._largest)

    def find_maximum(self, gradient_bytes: int) -> SearchResult:
        """Find the largest micro-batch up to the per-device target that fits.

        Args:
            gradient_bytes: Bytes of all gradients, which only accumulation keeps alive during a forward.

        Raises:
            TargetError: A size failed for a reason that is not memory.
            NoAnswerError: It failed because the null GPU cannot do what it asks for.
        """
        search = self._search_up_to(min(self._largest, _FIRST_RANGE))
        while search.limited_by == "target" and search.maximum < self._largest and search.failed is None:
            # Nothing far above what is known is tried: a batch of that size may not even fit the host.
            search = self._search_up_to(min(self._largest, search.maximum * _RANGE_GROWTH))
        if search.failed is not None:
            raise self.failure(search.failed)
        # Try the target in one micro-batch: without accumulated gradients it may fit where smaller sizes do not.
        target, maximum = self._per_device_target, search.maximum
        fitting = [trial for trial in self.trials if trial.outcome is Outcome.FITS]  # one may fit where another ran out
        at_maximum = next((trial for trial in fitting if trial.micro_batch == maximum), None)
        is_tried = any(trial.micro_batch == target for trial in self.trials)
        if target is None or at_maximum is None or search.limited_by != "memory" or is_tried:
            return search
        if (target - maximum) * self._growth(at_maximum) > gradient_bytes:
            return search
        if self.run(target, self._source.capacity_bytes).outcome is not Outcome.FITS:
            return search
        note = f"{target} fits because nothing is accumulated then; with accumulation the largest is {maximum}"
        return replace(search, maximum=target, successor=None, limited_by="target", notes=(*search.notes, note))

    def _growth(self, largest: Trial) -> float:
        """Return bytes by which the peak grows with each sample: at most those above what stays from step to step."""
        above = ((largest.peak_allocated_bytes or 0) - (largest.fixed_bytes or 0)) / largest.micro_batch
        smaller = [
            trial
            for trial in self.trials
            if trial.outcome is Outcome.FITS and trial.micro_batch < largest.micro_batch and trial.peak_allocated_bytes
        ]
        if not smaller:
            return above
        # Part of it may be the same for all sizes, such as what the backward of the weights needs at once.
        other = min(smaller, key=lambda trial: trial.micro_batch)
        rise = (largest.peak_allocated_bytes or 0) - (other.peak_allocated_bytes or 0)
        return min(above, rise / (largest.micro_batch - other.micro_batch))

    def _search_up_to(self, largest: int) -> SearchResult:
        return find_maximum(
            lambda size: self.run(size, self._source.capacity_bytes),
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
            if not seen and self.run(size, self._source.capacity_bytes).outcome in (Outcome.OOM, Outcome.LIMIT):
                return False
        return True

    def find_recommended(self, search: SearchResult, headroom: float) -> int:
        """Find the largest tested size that fits with `headroom` of the capacity withheld, and not at its edge."""
        allowed = int(self._source.capacity_bytes * (1 - headroom))

        def predict_max(low: int, high: int) -> int | None:
            # A warm start that was right about the maximum knows the step well enough.
            if self._guessed and self._guessed.maximum == search.maximum and low < self._guessed.recommended < high:
                return self._guessed.recommended
            return self._source.predict_max(low, high, allowed_bytes=allowed, retries=False)

        return find_recommended(
            lambda size: self.run(size, allowed), search=search, allowed_bytes=allowed, predict_max=predict_max
        )

    def tried(self, micro_batch: int, steps: int) -> Trial:
        """Return a trial of a size with so many micro-batches in a step; run it where none that fits was seen."""
        seen = [trial for trial in self.trials if trial.micro_batch == micro_batch and trial.outcome is Outcome.FITS]
        if seen and steps <= self.micro_steps(micro_batch):
            return seen[-1]
        return self.run(micro_batch, self._source.capacity_bytes, steps)

    def try_profiled(self, size: int | None, maximum: int) -> None:
        """Run the size whose memory is asked for, with all memory, where the search did not and it can fit.

        Where nothing tells what memory is made of, its peaks and phases are those of this trial.
        """
        if size is not None and size <= maximum:
            self.tried(size, self.micro_steps(size))

    def micro_steps(self, size: int) -> int:
        """Return how many micro-batches each optimizer step of a trial has."""
        return self._steps or micro_steps(size, self._per_device_target)

    def run(self, micro_batch: int, allowed_bytes: int, steps: int | None = None) -> Trial:
        """Run a trial with so many micro-steps; None for as many as the target asks for."""
        steps = steps or self.micro_steps(micro_batch)
        return self.record(
            micro_batch,
            steps,
            lambda: self._source.run(micro_batch, micro_steps=steps, allowed_bytes=allowed_bytes),
        )

    def record(self, micro_batch: int, steps: int, run: Callable[[], Trial]) -> Trial:
        """Have a trial run, and count it among those of the probe.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: A crash or the time limit.
        """
        self._progress.trial_started(micro_batch, self._low, self._high)
        try:
            trial = replace(run(), micro_batches_per_step=steps)
        except (KeyboardInterrupt, NoAnswerError) as end:
            self._add_proven(end)
            raise
        if self._searched is not None and micro_batch > 1 and trial.outcome is Outcome.FAILED:
            smallest = None if self._low else self.run(1, trial.allowed_bytes, steps)
            if smallest is not None and smallest.outcome is Outcome.FAILED:
                return smallest
            trial = replace(trial, outcome=Outcome.LIMIT)  # what a model cannot do with a larger size is its limit
        is_plainer = steps < self.micro_steps(micro_batch)  # which proves nothing of the others
        if trial.outcome is Outcome.FITS and not is_plainer:
            self._low = max(self._low, micro_batch)
        elif trial.outcome is Outcome.FAILED:
            pass  # for another reason than its size, as far as is known
        elif trial.allowed_bytes >= self._source.capacity_bytes and not is_plainer:  # not with headroom withheld
            self._high = min(self._high, micro_batch)
        self.trials.append(trial)
        self._progress.trial_finished(trial)
        return trial

    def _add_proven(self, end: BaseException) -> None:
        """Note on what ends the search which sizes it has proven until now, where it has any."""
        parts = [f"{self._named(self._low)} fits"] if self._low else []
        if self._high <= self._largest:
            parts.append(f"{self._named(self._high) if not parts else self._value(self._high)} does not fit")
        if parts:
            end.add_note(f"proven so far: {', and '.join(parts)}")

    def _named(self, size: int) -> str:
        return f"{'micro-batch' if self._searched is None else self._searched.name} {self._value(size)}"

    def _value(self, size: int) -> int:
        return size if self._searched is None else size * self._searched.multiple_of

    def failure(self, trial: Trial, *, named: str = "", hint: str = "mend it and probe again") -> OomdoctorError:
        """Return the error for a trial that failed for another reason than memory.

        Args:
            trial: The trial.
            named: What was tried; empty for its size.
            hint: What to do about it, where the problem itself has no hint.
        """
        fitting = [self._value(other.micro_batch) for other in self.trials if other.outcome is Outcome.FITS]
        contrast = f", and {max(fitting)} does not" if fitting else ""
        problem = self._source.notes.problem
        if problem is not None and problem.kind == NoAnswerError.__name__:
            error = problem.error()
            self._add_proven(error)
            return error
        own = None if problem is None else problem.hint
        if self._searched is not None and trial.micro_batch == 1 < self._searched.multiple_of:
            hint = f"only multiples of {self._searched.multiple_of} are tried: try those of a smaller number"
        return TargetError(
            f"{named or self._named(trial.micro_batch)} fails{contrast}: {trial.error}",
            details=None if problem is None else problem.details,
            hint=own or f"this is not an out-of-memory error; {hint}",
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
