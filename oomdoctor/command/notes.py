"""Notes beside the answer: observations of the trials, and the reasons and warnings that they lead to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.unknown_reads import read_warnings
from oomdoctor.command.lone_rank import share_of_command
from oomdoctor.command.outcome import ENOUGH_STEPS, SlowStage, slowest_stage
from oomdoctor.command.template import accumulates, near_misses
from oomdoctor.request import ACCUMULATION, MICRO_BATCH
from oomdoctor.results import Outcome, PhaseName, Reason
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.agent.messages import Measurements, UnknownRead
    from oomdoctor.command.outcome import ClassifiedTrial
    from oomdoctor.command.supervisor import CommandSupervisor
    from oomdoctor.command.trial_events import TrialEvents
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Trial
    from oomdoctor.search.bracket import SearchResult
    from oomdoctor.search.growth import StepGrowth
    from oomdoctor.target.literals import FoundLiteral


_SAME_SHARE: Final = 0.01
"""Peaks that differ by less than this share are taken for the same."""

_LONG_SECONDS: Final = 20.0
"""A trial that takes longer than this before or beside training is worth a word."""

_FIRST_COMPLETE: Final = 2
"""The first iteration has no optimizer state, and the second is the first that is like all others."""


@dataclass(slots=True)
class Observations:
    """Observations of trials besides their outcomes.

    Attributes:
        written: Paths that the command wrote to, in order.
        steps: Fewest optimizer steps of a trial that fits.
        gradient_bytes: Bytes of all gradients.
        evaluation_bytes: Micro-batch, and most bytes of its evaluation and of its training, where the first is more.
        oom_in_evaluation: Micro-batches at which an evaluation ran out of memory.
        processes: Largest number of processes that trained together.
        communicators: Ranks of each communicator that the null GPU's NCCL made, of the trial that made most.
        pipeline: Most micro-batches of a schedule of a rank's pipeline; 0 for none.
        failures: Failures of the agent, in order.
        untrained_bytes: Bytes of parameters that an optimizer held and that had no gradient at its first step.
        slow: What took most of a trial's time other than training, where that was long.
        rising: Micro-batch of a trial that fits in which each complete step needed more than the one before, or None.
        passes: Backward passes in each optimizer step, by the micro-batch of a trial that fits.
        idle_optimizers: Most optimizers of a trial that fits which were made and took no step in it.
        host_bytes: Bytes that a forward moves to the host, by micro-batch.
    """

    written: dict[str, None] = field(default_factory=dict)
    steps: int | None = None
    gradient_bytes: int = 0
    evaluation_bytes: tuple[int, int, int] | None = None
    oom_in_evaluation: list[int] = field(default_factory=list)
    processes: int = 1
    communicators: tuple[int, ...] = ()
    pipeline: int = 0
    failures: dict[str, None] = field(default_factory=dict)
    idle_optimizers: int = 0
    passes: dict[int, int] = field(default_factory=dict)
    untrained_bytes: int = 0
    slow: SlowStage | None = None
    rising: int | None = None
    host_bytes: dict[int, int] = field(default_factory=dict)

    def take(self, events: TrialEvents, classified: ClassifiedTrial, micro_batch: int) -> None:
        """Take in a trial that has ended."""
        self.processes = max(self.processes, events.world_size)
        slow = slowest_stage(events)
        if slow is not None and slow.seconds > max(_LONG_SECONDS, 0.0 if self.slow is None else self.slow.seconds):
            self.slow = slow
        if classified.in_evaluation:
            self.oom_in_evaluation.append(micro_batch)
        for measured in events.trainers():
            self.failures.update(dict.fromkeys(measured.failures))
            self.communicators = max(self.communicators, measured.communicators, key=len)
            self.pipeline = max(self.pipeline, measured.pipeline_micro_batches)
            self.gradient_bytes = max(self.gradient_bytes, measured.gradient_bytes or 0)
            evaluation, training = measured.evaluation_peak_bytes, measured.training_peak_bytes
            if evaluation is not None and training is not None and evaluation > training:
                self.evaluation_bytes = (micro_batch, evaluation, training)
        self.host_bytes[micro_batch] = max((told.host_bytes for told in events.remedies), default=0)
        if classified.trial.outcome is Outcome.FITS:
            for measured in events.trainers():
                self._take_changes(measured, micro_batch)
            self.steps = min(self.steps or events.done_steps, events.done_steps)

    def own_steps(self, micro_batch: int) -> int:
        """Return the micro-batches that a command without a placeholder for them accumulates by itself in each step.

        Several backward passes may be those of several losses; where smaller sizes have more, they split one batch.
        """
        return self.passes.get(micro_batch, 1) if len(set(self.passes.values())) > 1 else 1

    def _take_changes(self, measured: Measurements, micro_batch: int) -> None:
        """See whether training had become what it will be: all optimizers and parameters train, no step needs more."""
        untrained = (measured.parameter_bytes or 0) - (measured.gradient_bytes or 0)
        self.untrained_bytes = max(self.untrained_bytes, untrained)
        if measured.passes is not None:
            self.passes[micro_batch] = measured.passes
        self.idle_optimizers = max(self.idle_optimizers, measured.idle_optimizers)
        peaks = _iteration_peaks(measured)
        if len(peaks) > 1 and peaks[-1] > peaks[-2] * (1 + _SAME_SHARE):
            self.rising = micro_batch


def _iteration_peaks(measured: Measurements) -> list[int]:
    """Most bytes in the training of each complete iteration after the first."""
    peaks: dict[int, int] = {}
    for phase in measured.phases:
        if phase.phase != PhaseName.EVALUATION and _FIRST_COMPLETE <= phase.iteration <= measured.steps:
            peaks[phase.iteration] = max(peaks.get(phase.iteration, 0), phase.peak_allocated_bytes)
    return [peaks[iteration] for iteration in sorted(peaks)]


_MOST_ENTRIES: Final = 8
_ZEROS: Final = (
    "the command read data back from the null GPU, which is zeros: to log it is harmless, but memory that depends on "
    "it (boolean masks, `nonzero`, `.item()` in a condition) is not counted"
)


def reasons(request: ProbeRequest, supervisor: CommandSupervisor) -> tuple[Reason, ...]:
    """Return how the numbers were had."""
    name = "backward pass" if request.count_steps == "backward" else "optimizer step"
    growth = supervisor.notes.growth
    count = request.steps if growth is None else max(request.steps, growth.iterations)
    steps = f"one {name}" if count == 1 else f"{count} {name}{'es' if name.endswith('s') else 's'}"
    found = [
        Reason("trials", f"the command itself, ended by force once it had taken {steps}, or more where memory grew"),
        Reason("starts", supervisor.fork_reason or "each trial was started anew, as `--fresh` says"),
    ]
    if pipeline := supervisor.observations.pipeline:
        found.append(Reason("pipeline", _describe_pipeline(pipeline)))
    if accumulates(request.templates):
        text = f"`{ACCUMULATION}` was 2 in trials below the target, which has all the memory that more steps have"
        found.append(Reason("accumulation", text))
    if supervisor.literals:
        found.append(Reason("literals", _describe_literals(supervisor.literals)))
    if supervisor.notes.zeros_read and not _deciding(supervisor):
        found.append(Reason("zeros", _ZEROS))
    if left := [Path(path) for path in supervisor.observations.written if Path(path).exists()]:
        found.append(Reason("written", _describe_paths(left, request.directory)))
    return tuple(found)


def _describe_pipeline(micro_batches: int) -> str:
    return (
        f"its schedule had {micro_batches} micro-batches of its own in each step; whether `{MICRO_BATCH}` is one of "
        "them or all together is the command's, and the plan counts it once"
    )


def _describe_literals(literals: Sequence[FoundLiteral]) -> str:
    told = [f"`{each.override.name}` in line {each.place.line} of `{each.override.file}`" for each in literals]
    return f"trials set {', '.join(told)} when the source was compiled; no file was changed"


def warnings(
    request: ProbeRequest, supervisor: CommandSupervisor, search: SearchResult, trials: Sequence[Trial]
) -> tuple[str, ...]:
    """Return what a reader should know before relying on the answer."""
    observations = supervisor.observations
    failed = [trial for trial in trials if trial.outcome is Outcome.FAILED]  # the answer rests on none of them
    return (
        *_command_warnings(request, observations, search),
        *read_warnings(supervisor.notes.unknown_reads, "the command"),
        *_training_warnings(observations, supervisor.notes.growth),
        *_evaluation_warnings(observations),
        *(f"the command failed when it was run at micro-batch {each.micro_batch}: {each.error}" for each in failed),
    )


def _deciding(supervisor: CommandSupervisor) -> list[UnknownRead]:
    """Return the reads on which memory may depend; a value that is read to log it is harmless."""
    return [read for read in supervisor.notes.unknown_reads if read.effect in ("size", "decision")]


def _command_warnings(request: ProbeRequest, seen: Observations, search: SearchResult) -> Iterator[str]:
    share = share_of_command(request)
    for name, meant in near_misses(request.command or ()).items():
        yield f"`{name}` is no placeholder and was passed on as it is; `{meant}` would be filled in"
    own = seen.own_steps(search.maximum)
    if share is not None and own > 1 and not accumulates(request.templates):
        yield (
            f"the command accumulates by itself, in {own} backward passes for each optimizer step at micro-batch "
            f"{search.maximum}; how many samples a step sees is its own setting, not the target"
        )
    elif share is not None and search.maximum < share and not accumulates(request.templates):
        yield (
            f"the command has no `{ACCUMULATION}`: each of its optimizer steps sees one micro-batch, not the target; "
            "gradients that it accumulates in another way stay alive during the forward, and training may need more"
        )
    if seen.pipeline and accumulates(request.templates):
        yield (
            f"`{ACCUMULATION}` was 2 in trials, and a pipeline's stages hold several micro-batches at once: where it "
            "is the schedule's number of them, write that number in its place"
        )
    if seen.processes > request.world_size:
        yield (
            f"{seen.processes} processes trained together, and the world size was taken to be {request.world_size}; "
            f"`--world-size {seen.processes}` shares the target batch between them"
        )
    if seen.slow is not None:
        yield f"a trial spent {seen.slow.seconds:.0f} s {seen.slow.doing}: to probe sooner, {seen.slow.advice}"
    if seen.failures:
        yield f"not all could be measured in the command's processes: {'; '.join(seen.failures)}"


def _training_warnings(seen: Observations, growth: StepGrowth | None) -> Iterator[str]:
    if seen.steps is not None and seen.steps < ENOUGH_STEPS:
        yield "the command ended after one optimizer step, and only the second has the peak that training has"
    if seen.idle_optimizers:
        yield (
            f"{seen.idle_optimizers} of the command's optimizers took no step in a trial, so what their steps need is "
            "not known; raise `--steps` until they do"
        )
    if seen.rising is not None and growth is None:
        yield (
            f"at micro-batch {seen.rising} the last step of a trial needed more than the one before, and a later one "
            "may need more still: give it its longest batches first, or raise `--steps`"
        )
    if seen.untrained_bytes > 0:
        yield (
            f"{format_size(seen.untrained_bytes)} of parameters that the optimizer holds had no gradient in a trial; "
            "where they begin to train later, training needs more"
        )


def _evaluation_warnings(seen: Observations) -> Iterator[str]:
    if seen.oom_in_evaluation:
        sizes = ", ".join(map(str, sorted(set(seen.oom_in_evaluation))))
        yield f"at micro-batch {sizes} memory ran out in an evaluation, not in training"
    if seen.evaluation_bytes is not None:
        size, evaluation, training = seen.evaluation_bytes
        yield (
            f"evaluation needs more than training: {format_size(evaluation)} against {format_size(training)} at "
            f"micro-batch {size}"
        )


def _describe_paths(paths: list[Path], directory: Path) -> str:
    """Return the paths that were written as text: by entry of the working directory, or by folder elsewhere."""
    counts: Counter[str] = Counter()
    for path in paths:
        parts = path.relative_to(directory).parts if path.is_relative_to(directory) else ()
        counts[f"{parts[0]}{'/' if len(parts) > 1 else ''}" if parts else f"{path.parent}/"] += 1
    counts = Counter({place: count for place, count in counts.items() if f"{place}/" not in counts})
    places = [f"`{place}`{f' ({count} paths)' if count > 1 else ''}" for place, count in counts.items()]
    rest = len(places) - _MOST_ENTRIES
    more = f" and {rest} more" if rest > 0 else ""
    return f"the command wrote {', '.join(places[:_MOST_ENTRIES])}{more} while it was tried"
