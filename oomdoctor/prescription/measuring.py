"""Probes of one target with sets of remedies, side by side, each at most once."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import NoAnswerError, NotApplicableError, OomdoctorError
from oomdoctor.multi_card.pool import PooledProbe, probe_case, run_elsewhere
from oomdoctor.progress import SilentProgress
from oomdoctor.remedies.catalogue import ALLOCATOR_VARIABLE, cost, exactness, remedy, with_remedies
from oomdoctor.report.plain_text import count
from oomdoctor.results import Outcome
from oomdoctor.results.prescribe import MeasuredRemedies
from oomdoctor.trial.parallel import run_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    from oomdoctor.command.fork_server import KeptForkServer
    from oomdoctor.multi_card.pool import Answer
    from oomdoctor.multi_card.workers import WorkerPool
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Trial
    from oomdoctor.results.prescribe import StepCost
    from oomdoctor.trial.answer import ProbeRun
    from oomdoctor.trial.process import CancelToken

    Names = tuple[str, ...]

_BUDGET_SPENT: Final = "the budget of probes was spent"
_SHORT_SECONDS: Final = 10
_LONG_SECONDS: Final = 120
_QUIET_SECONDS: Final = 5.0
"""Time without a word after which the end of a trial inside a row is told: a compiled model's row takes a minute."""


@dataclass(slots=True)
class Round:
    """Rows that are measured one beside the other.

    Attributes:
        rows: How many there are.
        done: How many have ended.
    """

    rows: int = 0
    done: int = 0


class _RowProgress(SilentProgress):
    """Progress of one probe among others that run.

    Attributes:
        names: The remedies that it measures.
    """

    def __init__(self, measuring: Measuring, name: str, names: Names) -> None:
        self._measuring, self._name, self.names = measuring, name, names

    def trial_finished(self, trial: Trial) -> None:
        """Count it."""
        self._measuring.trial_ended(self._name, trial)


@dataclass(slots=True)
class Measuring:
    """What was measured so far.

    Attributes:
        request: The question about the target as it is.
        progress: Told of each probe.
        workers: Starts the workers.
        jobs: Most probes at once.
        budget: Most probes, without that of a patched copy.
        most: Most probes in all.
        executor: Runs the probes of remedies elsewhere; None for this machine.
        kept: The fork server of a command's probes on this machine; None for one of each probe's own.
        runs: Finished probes by their remedies.
        rows: Their rows.
        probes: How many were begun.
        done: How many have ended.
        running: What is being probed, in the order in which it was begun, each with the trials that have ended.
        seconds: Time that the target as it is took.
    """

    request: ProbeRequest
    progress: Progress
    workers: WorkerPool
    jobs: int
    budget: int
    most: int
    executor: Executor | None = None
    kept: KeptForkServer | None = None
    runs: dict[Names, ProbeRun] = field(default_factory=dict)
    rows: dict[Names, MeasuredRemedies] = field(default_factory=dict)
    probes: int = 0
    done: int = 0
    running: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    _round: Round = field(default_factory=Round)
    _lock: Lock = field(default_factory=Lock)
    _told_at: float = 0.0

    def plain(self) -> ProbeRun:
        """Probe the target as it is.

        Raises:
            OomdoctorError: There is no answer about it.
        """
        self.probes += 1
        begun = time.monotonic()
        with self._told(f"{self.request.target} as it is") as told:
            answer = self._probed(told, self.request, None)
            if isinstance(answer, OomdoctorError):
                raise answer
            self.rows[()] = self._row((), answer)
        self.seconds = time.monotonic() - begun
        self._say(f"as it is: {answer.result.micro_batch.maximum}")
        return answer

    def _plain_trial(self) -> Trial | None:
        """Return the trial of the target as it is at its maximum."""
        result = self.runs[()].result
        return _trial(result.trials, result.micro_batch.maximum)

    @property
    def optimizer(self) -> str:
        """Class name of the optimizer that trains the target as it is."""
        return self.runs[()].result.optimizer

    def measure(self, sets: Sequence[Names]) -> list[MeasuredRemedies]:
        """Return a row for each set of remedies, in their order."""
        pieces = []
        for names in dict.fromkeys(sets):
            if names in self.rows:
                continue
            if (problem := next(self._obstacles(names), None)) is not None:
                self.rows[names] = unmeasured(names, "not_applicable", problem)
            elif self.probes >= self.budget:
                self.rows[names] = unmeasured(names, "not_measured", _BUDGET_SPENT)
            else:
                self.probes += 1
                pieces.append(partial(self._measure, names))
        if pieces:
            at_once = min(self.jobs, len(pieces)) if self.executor is None else len(pieces)
            self._announce(len(pieces), at_once)
            run_all(pieces, at_once)
        return [self.rows[names] for names in sets]

    def again(self, request: ProbeRequest) -> Answer:
        """Probe another target, such as a patched copy, as the rows were."""
        self.probes += 1
        self._round = Round()
        with self._told("the patched copy") as told:
            return self._probed(told, replace(request, variant=self.request.variant), None)

    @property
    def state(self) -> str:
        """Progress in words: probes that have ended, of how many, and those that run."""
        done = f"{self.done} of at most {count(self.most, 'probe')} done"
        if self._round.rows > 1:
            done = f"{self._round.done} of {self._round.rows} rows of this round, {done}"
        running = [f"{name} ({count(trials, 'trial')})" if trials else name for name, trials in self.running.items()]
        return f"{done}, measuring {', '.join(running)}" if running else done

    def trial_ended(self, name: str, trial: Trial) -> None:
        """Count a trial of a probe that runs, and tell it where nothing has been told for a while."""
        with self._lock:
            self.running[name] += 1
            if time.monotonic() - self._told_at >= _QUIET_SECONDS:
                self._say(f"{self.state}, the last at micro-batch {trial.micro_batch}")

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        self.progress.stage(text)

    def _announce(self, rows: int, at_once: int) -> None:
        """Say how many rows follow; and, where they are the first, about how long they take."""
        is_first = len(self.runs) == 1 and not self._round.rows
        self._round = Round(rows)
        if is_first:
            seconds = -(-rows // at_once) * self.seconds
            self._say(
                f"{count(rows, 'remedy', 'remedies')} alone, {at_once} at once: {_duration(seconds)} at most "
                f"where each takes the {_duration(self.seconds)} of the target as it is; then their combinations"
            )

    @contextmanager
    def _told(self, name: str, names: Names = ()) -> Iterator[_RowProgress]:
        """Announce a probe and count it at its end; an interrupted one stays among those that run."""
        with self._lock:
            self.running[name] = 0
            self._say(self.state)
        yield _RowProgress(self, name, names)
        with self._lock:
            del self.running[name]
            self.done += 1
            self._round.done += 1

    def _measure(self, names: Names, stop: CancelToken) -> None:
        if stop.is_set:  # a thread that was stopped takes the next piece before that is called off
            raise KeyboardInterrupt
        with self._told(" + ".join(names), names) as told:
            row = self._measured(names, stop, told)
        with self._lock:
            self.rows[names] = row
            self._say(_found(row))

    def _measured(self, names: Names, stop: CancelToken, told: _RowProgress) -> MeasuredRemedies:
        request = replace(self.request, variant=with_remedies(self.request.variant, names))
        known = self._known_cost(names)
        answer = self._probed(told, request, stop, self.rows[()].maximum or None, counts=known is None)
        if known is not None and not isinstance(answer, OomdoctorError):
            is_compared = answer.result.micro_batch.maximum >= known.micro_batch
            answer = replace(answer, cost=known if is_compared else None)
        return self._row(names, answer)

    def _known_cost(self, names: Names) -> StepCost | None:
        """Return the cost without the remedies that leave a step's operators alone; None where that is timed, too."""
        inside = tuple(name for name in names if not remedy(name).is_outside_of_steps)
        cost = self.runs[inside].cost if inside != names and inside in self.runs else None
        return None if cost is None or cost.seconds is not None else cost

    def _obstacles(self, names: Names) -> Iterator[str]:
        """Yield why a set cannot be asked about."""
        request = self.request
        for name in names:
            one = remedy(name)
            if request.command is not None and one.not_in_commands is not None:
                yield one.not_in_commands
            if one.not_in_traces is not None and self.runs[()].result.device.kind == "trace":
                yield one.not_in_traces
            if request.command is None and one.missing is not None:
                yield one.missing
            if not one.accumulates and request.target_batch is not None:
                yield "steps accumulate gradients, which it would apply after each micro-batch"
            if one.precision is not None and request.variant.precision != "fp32":
                yield f"the step runs under {request.variant.precision} autocast already"
            setting = request.environment(os.environ).get(ALLOCATOR_VARIABLE)
            if one.allocator is not None and setting:
                yield f"`{ALLOCATOR_VARIABLE}={setting}` is set already"

    def _probed(
        self,
        told: _RowProgress,
        request: ProbeRequest,
        stop: CancelToken | None,
        size: int | None = None,
        *,
        counts: bool = True,
    ) -> Answer:
        request = replace(request, profiles=False, profile_micro_batch=size, counts_cost=counts)
        case = PooledProbe("+".join(told.names), request)
        if self.executor is not None and told.names:
            return run_elsewhere(self.executor, probe_case, case, stop=stop)
        return probe_case(case, stop, self.workers.start, self.kept, told)

    def _row(self, names: Names, answer: Answer) -> MeasuredRemedies:
        if isinstance(answer, NotApplicableError):
            return unmeasured(names, "not_applicable", answer.message)
        if isinstance(answer, NoAnswerError):  # a time limit, a crash: which says nothing of the remedy's step
            return unmeasured(names, "not_measured", answer.message)
        if isinstance(answer, OomdoctorError):
            return unmeasured(names, "raises", answer.message)
        self.runs[names] = answer
        result, plain = answer.result, self.rows.get(())
        before = self.runs[()].cost
        sizes = result.micro_batch
        trial = _trial(result.trials, sizes.maximum)
        compared = _trial(result.trials, plain.maximum, like=self._plain_trial()) if plain else None
        return replace(
            unmeasured(names, "measured", None),
            maximum=sizes.maximum,
            recommended=sizes.recommended,
            limited_by=sizes.limited_by,
            peak_bytes=trial.peak_allocated_bytes if trial else None,
            compared_peak_bytes=compared.peak_allocated_bytes if compared else None,
            bytes_per_sample=_slope(result.trials),
            fixed_bytes=_fixed(result.trials, trial) if trial else None,
            host_bytes=answer.host_bytes,
            acts_on=tuple(change.acts_on for change in answer.changes if change.acts_on),
            notes=tuple(change.note for change in answer.changes if change.note),
            **_cost(answer.cost, before, tuple(hidden for name in names if (hidden := remedy(name).uncounted))),
        )


def unmeasured(names: Names, outcome: str, problem: str | None) -> MeasuredRemedies:
    """Return the row of a set of which nothing is known but why."""
    remedies = [remedy(name) for name in names]
    return MeasuredRemedies(
        remedies=names,
        title="; ".join(one.title for one in remedies) or "as it is",
        exactness=exactness(names),
        outcome=outcome,  # type: ignore[arg-type]
        cost=tuple(one.cost for one in remedies),
        problem=problem,
    )


def _cost(cost: StepCost | None, before: StepCost | None, hidden: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a row's cost, against that of the target as it is; nothing is known of what is hidden."""
    if hidden:
        return {"unknown_operators": hidden, "step_seconds": cost.seconds if cost else None}
    if cost is None or before is None or cost.micro_batch != before.micro_batch:
        return {}
    return {
        "recomputed_flops_percent": _more(cost.flops, before.flops),
        "extra_bytes_percent": _more(cost.touched_bytes, before.touched_bytes),
        "step_seconds": cost.seconds,
        "unknown_operators": tuple(sorted({*cost.unknown, *before.unknown})),
        "step_flops": cost.flops_by_type,
        "step_touched_bytes": cost.touched_bytes,
    }


def _more(count: int | None, before: int | None) -> float | None:
    return None if count is None or not before else max(0.0, round(100 * (count / before - 1), 1))


def _trial(trials: Sequence[Trial], size: int, like: Trial | None = None) -> Trial | None:
    """Return a trial in which a size fits, of a step that accumulates if there is one, or of one like another.

    A plain step holds no gradients in its forward, and its peak is no measure of a step that accumulates.
    """
    fitting = [trial for trial in trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    if like is not None:
        fitting = [trial for trial in fitting if _steps(trial) == _steps(like)]
    return max(fitting, key=_steps, default=None)


def _steps(trial: Trial) -> int:
    """Return whether a trial accumulates, 1 or 2; a third micro-batch takes no more memory than the second."""
    return min(trial.micro_batches_per_step or 1, 2)


def _peak(trial: Trial) -> int:
    return trial.peak_allocated_bytes or 0


def _slope(trials: Sequence[Trial]) -> int | None:
    """Return what a sample more takes, between the smallest and the largest size that fit in steps alike.

    None where no two sizes tell: at small ones the peak may be that of the optimizer, whatever the size.
    """
    fitting = [trial for trial in trials if trial.outcome is Outcome.FITS]
    for steps in sorted(set(map(_steps, fitting)), reverse=True):
        sizes = sorted((trial.micro_batch, _peak(trial)) for trial in fitting if _steps(trial) == steps)
        (small, low), (large, high) = sizes[0], sizes[-1]
        if high > low and large > small:
            return (high - low) // (large - small)
    return None


def _fixed(trials: Sequence[Trial], at: Trial) -> int | None:
    """Return what stays from step to step whatever the size is; at one size where no two tell.

    A loop may keep what grows with it, such as the last step's logits.
    """
    known = [(trial.micro_batch, trial.fixed_bytes) for trial in trials if _stays_as(trial, at)]
    small, low = min(known, default=(0, at.fixed_bytes), key=lambda each: each[0])
    if at.fixed_bytes is None or low is None or at.micro_batch <= small:
        return at.fixed_bytes
    grown = max(0, at.fixed_bytes - low) * at.micro_batch // (at.micro_batch - small)
    return max(0, at.fixed_bytes - grown)


def _stays_as(trial: Trial, at: Trial) -> bool:
    return trial.outcome is Outcome.FITS and trial.fixed_bytes is not None and _steps(trial) == _steps(at)


def _duration(seconds: float) -> str:
    if seconds >= _LONG_SECONDS:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.1f} s" if seconds < _SHORT_SECONDS else f"{seconds:.0f} s"


def _found(row: MeasuredRemedies) -> str:
    found = f"{row.maximum}" if row.outcome == "measured" else row.outcome.replace("_", " ")
    return f"{' + '.join(row.remedies)}: {found}"


def order(row: MeasuredRemedies) -> tuple[Any, ...]:
    """Return what sorts rows, the best last."""
    return row.maximum, row.recommended, -(row.compared_peak_bytes or 0), tuple(-part for part in price(row))


def price(row: MeasuredRemedies) -> tuple[int, ...]:
    """Return what sorts rows by what they cost, the cheapest first.

    First what they keep of the numbers, then whether activations go to the host, then the larger of recomputed FLOPs
    and extra bytes, in whole percent; what has no known count is dearer. Among equals the catalogue's order decides.
    """
    kept, *ranks = cost(row.remedies)
    flops, touched = row.recomputed_flops_percent, row.extra_bytes_percent
    counted = None if flops is None or touched is None else round(max(flops, touched))
    return kept, int(row.host_bytes > 0), int(counted is None), counted or 0, *ranks
