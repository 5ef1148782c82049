"""Outcome of a trial, from its events; and the check that the model got the batch size that was filled in. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from oomdoctor.agent.host_memory import HostMemoryError
from oomdoctor.agent.unknown_reads import describe_reads
from oomdoctor.command.template import REQUIRED
from oomdoctor.command.trial_events import EVALUATING, LOADING, STARTING
from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError
from oomdoctor.oom.classifier import Evidence, classify_recorded
from oomdoctor.results import Outcome, Phase, PhaseName, Trial
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.agent.messages import ErrorChain, Measurements, UnknownRead
    from oomdoctor.command.trial import EndedTrial
    from oomdoctor.command.trial_events import TrialEvents
    from oomdoctor.results import SearchedSize
    from oomdoctor.target.literals import FoundLiteral


ENOUGH_STEPS: Final = 2
"""Only the second optimizer step has the peak that training has."""

SWALLOWED: Final = "the command ran out of memory, and its own code caught the error and went on"


@dataclass(frozen=True, slots=True)
class ClassifiedTrial:
    """A trial and what there is to say beside it.

    Attributes:
        trial: The trial, as the result will hold it.
        problem: The error of a trial that failed for another reason than memory; else None.
        in_evaluation: Whether memory ran out in an evaluation, not in training.
    """

    trial: Trial
    problem: OomdoctorError | None = None
    in_evaluation: bool = False

    def with_problem(self, problem: OomdoctorError) -> ClassifiedTrial:
        """Return the trial as one that failed, since it did not do what was asked for."""
        return ClassifiedTrial(replace(self.trial, outcome=Outcome.FAILED, error=problem.message), problem)


def classify_trial(ended: EndedTrial, micro_batch: int, allowed_bytes: int, steps: int) -> ClassifiedTrial:
    """Return a trial with its outcome.

    Args:
        ended: The trial.
        micro_batch: The size that was filled in.
        allowed_bytes: Bytes that PyTorch was allowed.
        steps: Optimizer steps that were asked for.
    """
    events = ended.events
    if events.ooms or any(measured.ooms for measured in events.measured.values()):
        text = SWALLOWED if events.has_survived else _error_text(events)
        trial = _trial(ended, micro_batch, allowed_bytes, Outcome.OOM, text)
        is_in_evaluation = bool(events.ooms) and events.ooms[0].phase == PhaseName.EVALUATION
        return ClassifiedTrial(trial, in_evaluation=is_in_evaluation)
    if (failed := _failed(events)) is not None:
        return _classify_error(ended, failed, micro_batch, allowed_bytes)
    problem = _shortcoming(ended, steps)
    if problem is None:
        return ClassifiedTrial(_trial(ended, micro_batch, allowed_bytes, Outcome.FITS, None))
    return ClassifiedTrial(_trial(ended, micro_batch, allowed_bytes, Outcome.FAILED, problem.message), problem)


def _classify_error(ended: EndedTrial, failed: ErrorChain, micro_batch: int, allowed_bytes: int) -> ClassifiedTrial:
    links = [(link.types, link.text) for link in failed.links]
    verdict = classify_recorded(links, Evidence(capacity_bytes=allowed_bytes))
    text = _error_text(ended.events)
    trial = _trial(ended, micro_batch, allowed_bytes, verdict.outcome, text)
    if verdict.outcome is not Outcome.FAILED:
        return ClassifiedTrial(trial)
    if failed.links[0].types[0].endswith(_NO_ROOM):
        return ClassifiedTrial(trial).with_problem(NoAnswerError.of_text(text))
    reads = [read for measured in ended.events.measured.values() for read in measured.unknown_reads]
    details = failed.traceback or ended.tail
    deciding = [read for read in reads if read.effect != "value"]  # a value is often read to log it
    if deciding and not _MISSING.intersection(failed.links[0].types):
        return ClassifiedTrial(trial).with_problem(_failed_on_zeros(deciding, text, details))
    return ClassifiedTrial(trial, TargetError(text, details=details))


_MISSING: Final = frozenset(("ImportError", "NameError"))
"""Errors of a module or a name that is not there, whatever a GPU computes."""
_NO_ROOM: Final = f".{HostMemoryError.__module__.rpartition('.')[2]}.{HostMemoryError.__name__}"
"""End of the qualified name of this error; in a command's processes the agent's package has another name."""


def _failed_on_zeros(reads: Sequence[UnknownRead], text: str, details: str | None) -> NoAnswerError:
    return NoAnswerError(
        f"the command read data back from the GPU ({describe_reads(reads)}) and then failed: {text}; from a null GPU "
        "come zeros, whatever was computed",
        details=details,
        hint="probe it on a machine with a CUDA GPU, or take decisions on what was computed out of the training loop",
    )


def _failed(events: TrialEvents) -> ErrorChain | None:
    return next((measured.error for measured in events.measured.values() if measured.error), None)


def _error_text(events: TrialEvents) -> str:
    failed = _failed(events)
    if failed is not None:
        # Where memory ran out, the error that says so tells more than what was raised on top of it.
        chosen = next((link for link in failed.links if "out of memory" in link.text.lower()), failed.links[0])
        return chosen.text.strip() or chosen.types[0]
    if not events.ooms:
        return "the command ran out of memory"
    # The command ended before it sent an error: the allocation that failed stands for it.
    tried, free = format_size(events.ooms[0].tried_bytes), format_size(events.ooms[0].free_bytes)
    return f"CUDA out of memory. Tried to allocate {tried}; {free} were free"


# --- what keeps a trial without an error from being one that fits ----------------------------------------------------


def _shortcoming(ended: EndedTrial, steps: int) -> OomdoctorError | None:
    events = ended.events
    if not events.started:
        return _no_torch(ended)
    if events.done_steps and not events.has_used_gpu:
        return TargetError(
            "the command trains on the CPU: it took optimizer steps and never used the GPU",
            hint="give it the option that makes it train on `cuda`",
            details=ended.tail,
        )
    if events.has_all_steps:
        return None
    if ended.timed_out and events.done_steps < ENOUGH_STEPS:
        slow = slowest_stage(events)
        return NoAnswerError(
            f"the command took {events.done_steps} of {steps} optimizer steps in {ended.seconds:.0f} s"
            + (f", {slow.seconds:.0f} s of them {slow.doing}" if slow else ""),
            hint=f"{slow.advice}, or {_TIMEOUT_HINT}" if slow else f"{_TIMEOUT_HINT}; {_FEWEST_STEPS}",
            details=ended.tail,
        )
    if ended.return_code:
        return _died_error(ended)
    return None if events.done_steps else _no_step(ended)


def one_step_error(ended: EndedTrial, steps: int) -> OomdoctorError | None:
    """Return what is wrong with a rank that ends after its first optimizer step; None where it takes two.

    Args:
        ended: Its trial, which fits.
        steps: Optimizer steps that were asked for.
    """
    if ended.events.done_steps >= min(ENOUGH_STEPS, steps):
        return None
    return TargetError(
        "the command ended after one optimizer step, and only the second has the peak that training has",
        hint="let it train for two steps or more, as `--max-steps 3` of a trainer does",
        details=ended.tail,
    )


def _no_step(ended: EndedTrial) -> OomdoctorError:
    if backwards := max(ended.events.without_optimizer.values(), default=0):
        return TargetError(
            f"the command ran {backwards} backward {'pass' if backwards == 1 else 'passes'} and made no optimizer of "
            "`torch.optim`",
            hint="`--count-steps backward` counts each backward pass as a step",
            details=ended.tail,
        )
    return never_stepped(ended)


def never_stepped(ended: EndedTrial) -> TargetError:
    """Return the error of a command that ended well without an optimizer step."""
    return TargetError(
        "the command ended well and never took an optimizer step of `torch.optim`",
        hint="a batch may be larger than its data, or a setting may keep it from training",
        details=ended.tail,
    )


def _no_torch(ended: EndedTrial) -> OomdoctorError:
    if ended.return_code:
        return _died_error(ended)
    if ended.timed_out:
        return NoAnswerError("the command never imported torch before its time was up", hint=_TIMEOUT_HINT)
    found = f"; it imported {' and '.join(ended.events.frameworks)}" if ended.events.frameworks else ""
    return TargetError(
        f"no Python of the command imported torch{found}",
        hint="a command is probed by what PyTorch does in it; nothing else can be measured",
        details=ended.tail,
    )


_TIMEOUT_HINT: Final = "raise the limit with `--trial-timeout`"
_FEWEST_STEPS: Final = "`--steps 2` is the least that shows the peak"


class SlowStage(NamedTuple):
    """A stage other than training in which a trial spent most of its time.

    Attributes:
        seconds: Its duration.
        doing: What the command did, as the end of a sentence.
        advice: How to make it shorter.
    """

    seconds: float
    doing: str
    advice: str


_SHORTEST_SECONDS: Final = 1.0
_STAGES: Final = {
    STARTING: ("before it imported torch", "start the training script itself, without what runs before it"),
    LOADING: ("before its first batch of training", "give the command fewer samples, or data that is prepared already"),
    EVALUATING: ("in an evaluation", "let the command skip the evaluation before training, or give it fewer samples"),
}


def slowest_stage(events: TrialEvents) -> SlowStage | None:
    """Return the stage before or beside training that took more than half of a trial; None where none did."""
    spent = events.spent()
    stage = max(spent, key=lambda name: spent[name])
    is_slow = stage in _STAGES and spent[stage] > max(_SHORTEST_SECONDS, sum(spent.values()) / 2)
    return SlowStage(spent[stage], *_STAGES[stage]) if is_slow else None


def _died_error(ended: EndedTrial) -> OomdoctorError:
    code = ended.return_code or 0
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    done = ended.events.done_steps
    after = f"after {done} optimizer step{'s' if done > 1 else ''}" if done else "before its first optimizer step"
    hint = None if done else "start it without oomdoctor, and see that it comes to a step of its optimizer"
    return TargetError(f"the command ended with {how} {after}", details=ended.tail, hint=hint)


# --- the trial -------------------------------------------------------------------------------------------------------


def _trial(ended: EndedTrial, micro_batch: int, allowed_bytes: int, outcome: Outcome, error: str | None) -> Trial:
    """Return the trial with the peaks of the process that needed most."""
    trainers = ended.events.trainers()
    most = max(trainers, key=lambda measured: measured.peak_allocated_bytes or 0, default=None)
    return Trial(
        micro_batch=micro_batch,
        outcome=outcome,
        allowed_bytes=allowed_bytes,
        peak_allocated_bytes=_most(measured.peak_allocated_bytes for measured in trainers),
        peak_reserved_bytes=_most(measured.peak_reserved_bytes for measured in trainers),
        fixed_bytes=None if most is None else most.fixed_bytes,
        alloc_retries=_most(measured.alloc_retries for measured in trainers) or 0,
        workspace_retries=_most(measured.workspace_retries for measured in trainers) or 0,
        workspace_bytes=_most(measured.workspace_bytes for measured in trainers) or 0,
        swallowed_ooms=len(ended.events.ooms) if ended.events.has_survived else 0,
        seconds=ended.seconds,
        phases=() if most is None else _phases(most, ended.events),
        error=error,
        timing_bytes=0 if most is None else most.timing_bytes,
    )


def _most(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _phases(measured: Measurements, events: TrialEvents) -> tuple[Phase, ...]:
    """Return memory by phase; where memory ran out, up to there, whatever the command's own code did next."""
    phases = measured.phases
    keys = [(phase.iteration, phase.phase) for phase in phases]
    for oom in events.ooms:
        key = (oom.iteration, oom.phase)
        if oom.pid == measured.pid and key in keys:
            phases = phases[: keys.index(key) + 1]
            break
    return tuple(
        Phase(phase.iteration, PhaseName(phase.phase), phase.peak_allocated_bytes, phase.end_allocated_bytes)
        for phase in phases
    )


def unset_error(literals: Sequence[FoundLiteral], events: TrialEvents) -> OomdoctorError | None:
    """Return the error of a trial that fits and never ran a file whose literal it was to set; None where it ran all.

    Args:
        literals: The literals to set.
        events: The events of the trial.
    """
    unset = next((each for each in literals if str(each.path) not in events.edited), None)
    if unset is None:
        return None
    return TargetError(
        f"`{unset.override.name}` was not set: no Python of the command ran `{unset.path}`",
        hint="name the file that the command runs or imports; one that it reads and executes itself cannot be set",
    )


_SAME_SHARE: Final = 0.001
"""Peaks that differ by less than this share may be the same, but for what differs from run to run."""
_LEAST_SAMPLE_BYTES: Final = 64
"""Memory that each sample more takes at least where the size is heeded: near the edge, or beside large weights, a
sample is less than any share of the peak."""


@dataclass(slots=True)
class BatchSizeCheck:
    """Check that the size that was filled in reaches the model, from batches and peaks of several trials.

    Attributes:
        searched: The size that is searched; None where that is the micro-batch.
        shapes: Shapes of the first batch, by the trial's size; of a micro-batch the leading dimensions.
        peaks: Most bytes allocated, by the trial's size.
        ran_out: Shapes of the first batch and most bytes allocated of trials that ran out, by size.
    """

    searched: SearchedSize | None = None
    shapes: dict[int, frozenset[tuple[int, ...]]] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    ran_out: dict[int, tuple[frozenset[tuple[int, ...]], int]] = field(default_factory=dict)

    def problem_of(self, micro_batch: int, events: TrialEvents, peak_bytes: int | None) -> OomdoctorError | None:
        """Take in a trial that fits, and return what is wrong with it; None where nothing is known to be.

        Args:
            micro_batch: The size that was filled in.
            events: The events of its trial.
            peak_bytes: Most bytes allocated in it.
        """
        others = {size: peak for size, peak in self.peaks.items() if size != micro_batch}
        told = 1 if self.searched is None else None
        self.shapes[micro_batch] = frozenset(shape[:told] for shape in _shapes(events))
        self.peaks[micro_batch] = peak_bytes or 0
        if self._is_cut(micro_batch):
            return TargetError(
                f"micro-batch {micro_batch} was asked for, and a batch of {max(self.shapes[micro_batch])[0]} reached "
                "the model",
                hint="its data may have no more samples than that: give it more, or ask for a smaller `--target-batch`",
            )
        for size, peak in others.items():
            apart = abs(self.peaks[micro_batch] - peak)
            has_same_memory = _is_same(apart, max(self.peaks[micro_batch], peak), abs(micro_batch - size))
            if has_same_memory and self.shapes[micro_batch] == self.shapes[size]:
                return _ignored_error(micro_batch, size, self.searched)
        return None

    def problem_out_of_memory(
        self, micro_batch: int, events: TrialEvents, peak_bytes: int | None
    ) -> OomdoctorError | None:
        """Take in a trial that runs out, and return that the size is ignored where the very same batch ran out before.

        Args:
            micro_batch: The size that was filled in.
            events: The events of its trial.
            peak_bytes: Most bytes allocated in it.
        """
        shapes, peak = frozenset(_shapes(events)), peak_bytes or 0
        for size, (seen, seen_peak) in self.ran_out.items():
            is_same = _is_same(abs(peak - seen_peak), max(peak, seen_peak), abs(micro_batch - size))
            if shapes and shapes == seen and is_same:
                return _ignored_error(micro_batch, size, self.searched)
        self.ran_out[micro_batch] = shapes, peak
        return None

    def _is_cut(self, micro_batch: int) -> bool:
        """Fewer samples than asked for reached the model, where at another size just as many did."""
        seen = self.shapes[micro_batch]
        follows = any((size,) in shapes for size, shapes in self.shapes.items() if size != micro_batch)
        return follows and bool(seen) and max(seen) < (micro_batch,)


def _shapes(events: TrialEvents) -> list[tuple[int, ...]]:
    """Return the shapes of the first batches, of processes that train on a device."""
    batches = [batch for pid, batch in events.batches.items() if pid in events.devices]
    return [shape for batch in batches for shape in batch.shapes if shape]


def _is_same(apart_bytes: int, peak_bytes: int, samples: int) -> bool:
    """Return whether peaks that lie so far apart are those of one batch, though so many samples more were asked for."""
    return apart_bytes <= _SAME_SHARE * peak_bytes and apart_bytes < _LEAST_SAMPLE_BYTES * samples


def _ignored_error(first: int, second: int, searched: SearchedSize | None) -> OomdoctorError:
    unit, placeholder = (1, REQUIRED) if searched is None else (searched.multiple_of, f"{{{searched.name}}}")
    low, high = (size * unit for size in sorted((first, second)))
    return TargetError(
        f"the command does not heed `{placeholder}`: at {low} and at {high} the same batch reached the model, and "
        "training took the same memory",
        hint="put the placeholder where the command's own size goes; a configuration file may set it otherwise, "
        "and a literal that `--set` names may not be the one that counts",
    )
