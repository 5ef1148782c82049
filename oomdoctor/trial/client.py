"""The parent's side of trials in a worker: start it, ask it, and replace it where a trial left memory behind.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Final, Self, TypeVar

from oomdoctor.errors import OomdoctorError
from oomdoctor.results import Outcome
from oomdoctor.search.growth import ANSWER_ITERATIONS, LONGEST_GROWTH, PLAIN_ITERATIONS, growth_of, outlasted
from oomdoctor.search.trial_source import TrialNotes, TrialSource
from oomdoctor.trial.dependencies import UNWATCHED, Dependencies
from oomdoctor.trial.protocol import (
    AskDevice,
    CountCost,
    LoadTarget,
    ProfileTrial,
    Question,
    ReleaseTarget,
    ReplayTrials,
    ReportDependencies,
    RunTrial,
    TimeStep,
    TrialAllocations,
)
from oomdoctor.trial.shared_workers import WorkersOfProbe
from oomdoctor.trial.worker_answers import (
    HeldMemory,
    LoadedTarget,
    ProfileOutcome,
    SettingsChangedError,
)
from oomdoctor.trial.worker_process import WorkerProcess, WorkerStarter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Trial
    from oomdoctor.results.prescribe import StepCost
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.worker_answers import ProfileDone, StepTimed, TrialDone

AnswerT = TypeVar("AnswerT")
_WORKER: Final = "oomdoctor.trial.worker"


class WorkerTrialSource(TrialSource):
    """One probe's trials in workers, one at a time; use it as a context manager.

    Args:
        request: The question.
        reference: The target, parsed.
        environment: The worker's environment.
        stop: Ends a wait from another thread.
        start: Starts its workers; None for fresh interpreters.
        start_next: Starts those that replace one; None to start them as the first.

    Attributes:
        held: Memory that PyTorch held after the last trial.
        others_bytes: Bytes that other processes held on the device before the first worker.
        host_bytes: Bytes that a forward moves to the host, by size.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is a fact of its own
        self,
        request: ProbeRequest,
        reference: Reference,
        environment: Mapping[str, str],
        stop: CancelToken | None = None,
        start: WorkerStarter | None = None,
        start_next: WorkerStarter | None = None,
    ) -> None:
        self._request = request
        self._reference = reference
        self._environment = environment
        self._stop = stop
        self._starter = start
        self._next_starter = start_next or start
        self._worker: WorkerProcess | None = None
        self._is_loaded = False
        self._start: HeldMemory | None = None
        self._allocations: dict[int, str] = {}
        self._tight_allocations: dict[int, str] = {}
        self._iterations = PLAIN_ITERATIONS
        self._kept_memory = False
        self._is_repeatable: bool | None = None  # of a target that keeps memory; None where that is not known
        self._dependencies = Dependencies()
        self.held: HeldMemory | None = None
        self.others_bytes = 0
        self.host_bytes: dict[int, int] = {}
        self.capacity_bytes = 0
        self.notes = TrialNotes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._leave_worker()
        self.close()

    def device(self) -> Card:
        """Start a worker and return the card that it runs on; the next `load` uses that worker.

        Raises:
            NoAnswerError: No device, a crash, or the time limit.
        """
        self._worker, self._is_loaded = WorkerProcess(self._environment, self._stop, self._starter), False
        return self._ask(AskDevice(), "looking at the GPU").card

    def load(self) -> LoadedTarget:
        """Load the target in a worker that has loaded nothing yet.

        Raises:
            TargetError: The target's code is at fault.
            NoAnswerError: No device, a crash, or the time limit.
        """
        if self._worker is None or self._is_loaded:
            self.close()
            starter = self._next_starter if self._start is not None else self._starter
            self._worker = self._shared_worker() or WorkerProcess(self._environment, self._stop, starter)
        self._is_loaded = True
        request = self._request
        keeps_settings = self.notes.settings is not None
        question = LoadTarget(
            self._reference,
            request.variant,
            request.memory_bytes,
            request.watched,
            keeps_settings=keeps_settings,
            card_bytes=request.card_bytes,
            others_bytes=self.others_bytes,
            reserve_bytes=request.reserve_bytes,
            world_size=request.world_size,
            is_shared=self._sharing is not None,
        )
        try:
            loaded = self._ask(question, "loading the target")
        except SettingsChangedError as changed:
            self.close()
            self.notes.settings, self._environment = changed.variables, changed.environment(self._environment)
            return self.load()
        self.notes.memory_fraction = loaded.memory_fraction
        self.capacity_bytes, self._start = loaded.capacity_bytes, loaded.held
        return loaded

    @property
    def _sharing(self) -> WorkersOfProbe | None:
        """Workers that other probes take over; None where this one's are its own."""
        variant = self._request.variant
        is_plain = variant.devices == 1 and variant.lone_rank is None and not variant.transformations
        is_usual = is_plain and not self._request.watched and self.notes.settings is None
        return self._starter if is_usual and isinstance(self._starter, WorkersOfProbe) else None

    def _shared_worker(self) -> WorkerProcess | None:
        """Return a worker that another probe has left, for this one to begin in."""
        if self._sharing is None or self._start is not None:
            return None
        return self._sharing.take(self._reference, self._environment)

    def _leave_worker(self) -> None:
        """Leave the worker to other probes, where it is as a new one."""
        if self._worker is None or not self._is_loaded or self._sharing is None:
            return
        try:
            released = self._ask(ReleaseTarget(), "releasing the target")
        except OomdoctorError:
            return
        if released.is_clean:
            self._sharing.keep(self._worker, self._reference, self._environment, released.sources)
            self._worker = None

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int, draw: int = 0) -> Trial:
        """Run one trial; the next one finds memory as this one found it."""
        self._replace_retired()
        done = self._run(replace(self._question(micro_batch, micro_steps, allowed_bytes), draw=draw))
        if done.keeps_memory and self._is_repeatable is None:
            self._repeat(self._question(micro_batch, micro_steps, allowed_bytes), done)
        if self.notes.growth is None and done.trial.outcome is Outcome.FITS and self._leaves_more(done):
            self._watch_growth(RunTrial(micro_batch, micro_steps, allowed_bytes))
            if self._iterations != PLAIN_ITERATIONS:
                done = self._run(self._question(micro_batch, micro_steps, allowed_bytes))
        self.notes.add(done)
        self.notes.communicators = done.communicators
        self.notes.builds_graph = self.notes.builds_graph or done.builds_graph
        self.notes.problem = done.problem or self.notes.problem
        self.notes.loss_is_finite = self.notes.loss_is_finite and done.loss_is_finite
        self.notes.memory_fraction = done.memory_fraction
        self.capacity_bytes = done.capacity_bytes
        self.host_bytes[micro_batch] = done.host_bytes
        if done.allocations:
            (self._tight_allocations if done.trial.is_tight else self._allocations)[micro_batch] = done.allocations
        return done.trial

    def _question(self, micro_batch: int, micro_steps: int, allowed_bytes: int) -> RunTrial:
        leaks = self.notes.growth is not None and self.notes.growth.goes_on
        return RunTrial(micro_batch, micro_steps, allowed_bytes, self._iterations, leaks=leaks)

    def _leaves_more(self, done: TrialDone) -> bool:
        """Return whether a trial left memory behind, or its last step ended higher than its first."""
        is_left = self._start is None or done.held.allocated_bytes > self._start.allocated_bytes
        return is_left or done.keeps_memory or (len(done.ends) > 1 and done.ends[-1] > done.ends[0])

    def _repeat(self, question: RunTrial, first: TrialDone) -> None:
        """Run a trial again in a worker whose target kept memory of it: if it takes other memory, workers are replaced.

        What was taken from the target's objects may not be all that a step changes.
        """
        fits = first.trial.outcome is Outcome.FITS and self._worker is not None
        is_alike = fits and _memory_of(self._run(question)) == _memory_of(first)
        self._is_repeatable = is_alike and self._is_repeatable is None
        if not self._is_repeatable:
            self.close()

    def _watch_growth(self, question: RunTrial) -> None:
        """Run more steps at a size, to see whether memory grows from each to the next, and until when."""
        done = self._run(replace(question, iterations=LONGEST_GROWTH, until_settled=True))
        ran_out = done.trial.outcome is not Outcome.FITS
        self.notes.growth = growth_of(done.ends, question.micro_batch, done.holder, ran_out=ran_out)
        self._iterations = self.notes.growth.iterations

    def outlast(self, micro_batch: int, *, micro_steps: int) -> None:
        """Note in which step a size runs out of memory, where memory goes on growing."""
        growth = self.notes.growth
        if growth is None or not growth.goes_on:
            return
        done = self._run(RunTrial(micro_batch, micro_steps, self.capacity_bytes, ANSWER_ITERATIONS, leaks=True))
        ran_out = done.trial.outcome is not Outcome.FITS
        room = self.capacity_bytes - (done.trial.peak_allocated_bytes or 0)
        self.notes.growth = outlasted(growth, done.ends, micro_batch, room, ran_out=ran_out)

    def run_variation(self, micro_batch: int, *, micro_steps: int = 1, **changes: bool) -> TrialDone:
        """Run a trial with all of the memory and one thing changed; it is not among those that the search knows.

        Args:
            micro_batch: Samples in one forward and backward.
            micro_steps: Micro-batches in each optimizer step.
            changes: Those of `oomdoctor.trial.protocol.RunTrial`, such as `without_graph`.
        """
        return self._run(replace(self._question(micro_batch, micro_steps, self.capacity_bytes), **changes))

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """Predict by a replay of the earlier trials' allocations; None where no two of them can be replayed."""
        # At the edge a step may do without workspaces, and sizes lie side by side: a line through others is better.
        question = partial(ReplayTrials, low=low, high=high, allowed_bytes=allowed_bytes, retries=retries)
        size = self._replayed(self._allocations, question)
        if size is None and self._tight_allocations:
            size = self._replayed(self._tight_allocations | self._allocations, question)
        return size

    def _replayed(self, found: Mapping[int, str], question: Callable[..., ReplayTrials]) -> int | None:
        if len(found) < 2:  # noqa: PLR2004 - a line needs two points
            return None
        self._replace_retired()
        asked = question(tuple(starmap(TrialAllocations, found.items())))
        return self._ask(asked, f"a replay between {asked.low} and {asked.high}").size

    def forget(self) -> None:
        """Forget the allocations of the trials so far."""
        self._allocations.clear()
        self._tight_allocations.clear()

    def profile(
        self, micro_batch: int, *, micro_steps: int, allowed_bytes: int, peak_allocated_bytes: int | None = None
    ) -> ProfileOutcome:
        """Profile memory at a size; a failure is a reason in the outcome, and no error.

        Args:
            micro_batch: The size.
            micro_steps: Micro-batches in each optimizer step.
            allowed_bytes: Most bytes that the allocator may hold.
            peak_allocated_bytes: The peak of a trial that was the same; None to run one for it.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        question = self._question(micro_batch, micro_steps, allowed_bytes)
        try:
            if peak_allocated_bytes is None:
                trial = self._run(question).trial
                if trial.outcome is not Outcome.FITS:
                    return ProfileOutcome(None, trial.error, trial.outcome)
                peak_allocated_bytes = trial.peak_allocated_bytes
            asked = ProfileTrial(question, peak_allocated_bytes)
            done = self._profile(asked)
            if done.profile.reason and not done.profile.is_fresh:  # it took plans that another trial had made
                self._retire()
                done = self._profile(asked)
        except OomdoctorError as error:
            self._lose()
            return ProfileOutcome(None, error.message, Outcome.FAILED)
        self._keep_or_retire(done.held)
        return done.profile

    def _profile(self, asked: ProfileTrial) -> ProfileDone:
        self._ensure_loaded()
        return self._ask(asked, f"recording memory at micro-batch {asked.trial.micro_batch}")

    def count_cost(self, micro_batch: int) -> StepCost | None:
        """Count what a forward and backward of a size that fits compute and touch; None where that fails.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        try:
            self._ensure_loaded()
            done = self._ask(CountCost(micro_batch, self.capacity_bytes), f"counting micro-batch {micro_batch}")
        except OomdoctorError:
            self._lose()
            return None
        self._keep_or_retire(done.held)
        return done.cost

    def time_step(self, micro_batches: tuple[int, ...]) -> StepTimed:
        """Time a whole optimizer step with all of the memory, on a real GPU.

        Raises:
            OomdoctorError: It failed for another reason than memory.
            KeyboardInterrupt: The stop was set.
        """
        self._ensure_loaded()
        words = f"timing a step of {len(micro_batches)} x {micro_batches[0]}"
        done = self._ask(TimeStep(micro_batches, self.capacity_bytes), words)
        self._keep_or_retire(done.held)
        return done

    def on_another_card(self, request: ProbeRequest, environment: Mapping[str, str]) -> WorkerTrialSource:
        """Return a source of trials of the same target in another environment.

        Args:
            request: The question.
            environment: The environment of its workers.
        """
        return WorkerTrialSource(request, self._reference, environment, self._stop, self._starter, self._next_starter)

    def dependencies(self) -> Dependencies:
        """Return what the target used in every worker so far, as far as it was watched."""
        if not self._request.watched:
            return UNWATCHED
        if self._worker is not None and self._is_loaded:
            try:
                found = self._ask(ReportDependencies(), "asking what the target used").dependencies
            except OomdoctorError:
                self._lose()
            else:
                self._dependencies |= found
        return self._dependencies

    def close(self) -> None:
        """End the worker, if there is one."""
        self._kept_memory = False
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ask(self, question: Question[AnswerT], what: str) -> AnswerT:
        if self._worker is None:
            raise RuntimeError("a worker is started before it is asked")
        return self._worker.ask(question, what=what, timeout_seconds=self._request.trial_timeout_seconds)

    def _run(self, question: RunTrial) -> TrialDone:
        """Run a trial in a worker that is loaded, and end the worker where memory is left.

        PyTorch keeps cuDNN's plans: one that an earlier trial chose for want of memory has a new worker run the trial.
        So does an error where memory of an earlier trial was taken from the target's objects.
        """
        self._ensure_loaded()
        what = f"the trial at micro-batch {question.micro_batch}"
        done = self._ask(question, what)
        may_be_to_blame = self._kept_memory and done.trial.outcome is Outcome.FAILED
        if may_be_to_blame:
            self._is_repeatable = False
        if not done.is_fresh or may_be_to_blame:
            self._retire()
            self._ensure_loaded()
            done = self._ask(question, what)
        self._kept_memory = done.keeps_memory
        self._keep_or_retire(done.held)
        if self._is_repeatable is False and done.keeps_memory:
            self.close()
        return done

    def _replace_retired(self) -> None:
        if self._worker is None:
            self.load()
            self.notes.replaced += 1

    def _ensure_loaded(self) -> None:
        """Load the target in another worker, where there is none; that says nothing about the trials."""
        if self._worker is None:
            self.load()

    def _keep_or_retire(self, held: HeldMemory) -> None:
        self.held = held
        if held != self._start:
            self._retire()

    def _retire(self) -> None:
        """Close a worker that is not to be asked again, once it has reported what the target used."""
        self.dependencies()
        self.close()

    def _lose(self) -> None:
        """Close a worker that cannot be asked any more."""
        self._dependencies |= Dependencies(unseen=("a worker was lost before it reported what the target used",))
        self.close()


def _memory_of(done: TrialDone) -> tuple[object, ...]:
    """Return what a trial tells of memory."""
    trial = done.trial
    return trial.outcome, trial.peak_allocated_bytes, trial.peak_reserved_bytes, trial.alloc_retries, done.ends
