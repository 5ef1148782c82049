"""The result of a probe: trials, the answer, the plan, memory by phase, category and module."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from oomdoctor.codec import ADDED_LATER
from oomdoctor.errors import NoAnswerError
from oomdoctor.results.inference import EvaluationMemory, GenerationMemory
from oomdoctor.results.plan import Accumulation, CommandPlan
from oomdoctor.results.snapshot import Category, CategoryBytes, LineBytes, TimelinePoint
from oomdoctor.results.throughput import Throughput
from oomdoctor.results.variant import Mode, Variant


class PhaseName(StrEnum):
    """The part of training that an allocation belongs to."""

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PREFILL = "prefill"  # of generating: the prompts' keys and values
    DECODE = "decode"
    EVALUATION = "evaluation"  # between training steps; of a command, from `model.eval()` to `model.train()`

    @property
    def calls_model(self) -> bool:
        """Whether modules run in it, of a file's step."""
        return self not in {PhaseName.LOAD, PhaseName.OPTIMIZER}


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of one phase of one iteration; where an iteration has several micro-steps, over all of them.

    Attributes:
        iteration: 0 for loading the model, then 1 and 2; the optimizer's state first exists in the second.
        phase: The part of the training step.
        peak_allocated_bytes: Most bytes in live tensors during the phase.
        end_allocated_bytes: Bytes in live tensors when the phase last ended; the peak of a phase that failed.
    """

    iteration: int
    phase: PhaseName
    peak_allocated_bytes: int
    end_allocated_bytes: int


@dataclass(frozen=True, slots=True)
class ModuleBytes:
    """Memory of one category that was allocated while a module ran, or that belongs to its parameters.

    Attributes:
        module: Path in the model with list positions as `*`, such as `encoder.layers.*.attention`; empty for the
            model itself; None for what no module accounts for, such as the batch and the loss.
        category: What it is for.
        allocated_bytes: Bytes in live blocks.
        blocks: How many blocks.
    """

    module: str | None
    category: Category
    allocated_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Memory by category in one phase of one iteration; of several micro-steps each has a phase of its own.

    Attributes:
        iteration: 1 or 2; the optimizer's state first exists in the second.
        micro_step: From 1; the optimizer's phase has that of the last one.
        phase: Forward, backward or optimizer.
        first_event: Events until it began; the start of recording is 0 and the first event 1.
        last_event: Events until it ended; the same where nothing was allocated or freed.
        peak_categories: Bytes by category at the phase's peak, in the order of `weights`, `gradients`,
            `optimizer_state`, `activations`, `input`, `workspace`, `other`.
        end_categories: Bytes by category at its end, in the same order.
    """

    iteration: int
    micro_step: int
    phase: PhaseName
    first_event: int
    last_event: int
    peak_categories: tuple[int, ...]
    end_categories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of one trial by category, module and phase, from the allocator's own history.

    Attributes:
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step.
        peak_allocated_bytes: Most bytes in live tensors; the categories sum to it exactly, and so do the modules.
        peak_reserved_bytes: Most bytes held from the driver.
        peak_event: Events until it was reached.
        peak_iteration: Iteration of the peak.
        peak_phase: Phase of the peak.
        categories: Memory at the peak by category, largest first.
        modules: Memory at the peak by module and category, largest first.
        category_peaks: Each category by module at the first moment when that category alone is largest, in the order of
            the categories and then largest first; unlike the peak of all, it moves only as much as the category does.
        phases: Memory by phase, in order.
        timeline: Memory over both iterations, thinned to at most 400 points, each with the number of events until it;
            times are None, so that two runs agree.
        source_lines: Memory at the peak by operator, the user's line and category, largest first, which sums to the
            peak; empty where operators could not be watched.
    """

    micro_batch: int
    micro_steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    peak_iteration: int
    peak_phase: PhaseName
    categories: tuple[CategoryBytes, ...]
    modules: tuple[ModuleBytes, ...]
    category_peaks: tuple[ModuleBytes, ...]
    phases: tuple[PhaseMemory, ...]
    timeline: tuple[TimelinePoint, ...]
    source_lines: tuple[LineBytes, ...] = field(default=(), metadata=ADDED_LATER)


class Outcome(StrEnum):
    """Outcome of a trial."""

    FITS = "fits"
    OOM = "oom"
    LIMIT = "limit"  # a size limit that is not memory: 32-bit indexing, grid size
    FAILED = "failed"  # the user's code raised something else


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """Memory of one of several devices of a process.

    Attributes:
        index: Its number; device 0 is the one that a trial's other figures are of.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
    """

    index: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One attempt at one micro-batch size.

    Attributes:
        micro_batch: Samples in one forward and backward.
        outcome: How it ended: `fits`, `oom`, `limit` (a size limit that is not memory, such as 32-bit indexing) or
            `failed` (the user's code raised something else).
        allowed_bytes: Bytes that PyTorch's allocator was allowed during the trial; below the capacity where the
            headroom was withheld.
        peak_allocated_bytes: Most bytes in live tensors; for an OOM, up to the failure.
        peak_reserved_bytes: Most bytes held from the driver.
        fixed_bytes: Bytes that stay allocated from one micro-step to the next once everything exists; None when the
            trial did not get that far.
        alloc_retries: Times the allocator had to give back its cache to go on; above 0 the size runs at the edge.
        evaluation_retries: Of those, times since the first evaluation between training steps began, which needs other
            blocks than training does: a run pays for them once in an evaluation, and not in each step.
        workspace_retries: Times that it did so for a workspace of cuDNN, without which PyTorch can do.
        workspace_bytes: Bytes of the largest workspace that cuDNN took; 0 where none was, or where that cannot be seen.
        swallowed_ooms: OOMs that the user's own code caught.
        seconds: Wall time of the trial.
        phases: Memory by phase, in order; up to the failure.
        error: Text of the error, trimmed to what its reader needs; None when it fits.
        micro_batches_per_step: Micro-batches in each of its optimizer steps: 1 for a plain step, 2 or more
            where gradients are accumulated; None in documents from before it was kept.
        other_devices: Peaks of the devices of the process besides the first; empty where there is one.
        timing_bytes: Bytes of the buffer with which Inductor times kernels, where the trial ran out in a timing or was
            at its peak in one; else 0.
    """

    micro_batch: int
    outcome: Outcome
    allowed_bytes: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    fixed_bytes: int | None = None
    alloc_retries: int = 0
    swallowed_ooms: int = 0
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    error: str | None = None
    micro_batches_per_step: int | None = field(default=None, metadata=ADDED_LATER)
    workspace_retries: int = field(default=0, metadata=ADDED_LATER)
    workspace_bytes: int = field(default=0, metadata=ADDED_LATER)
    other_devices: tuple[DevicePeak, ...] = field(default=(), metadata=ADDED_LATER)
    timing_bytes: int = field(default=0, metadata=ADDED_LATER)
    evaluation_retries: int = field(default=0, metadata=ADDED_LATER)

    @property
    def is_tight(self) -> bool:
        """Return whether the allocator had to give back its cache, for a workspace or for anything else."""
        return self.alloc_retries + self.workspace_retries > 0

    @property
    def evaluation_peak_bytes(self) -> int | None:
        """Return the most bytes in live tensors while evaluating between training steps; None where it came to none."""
        peaks = (phase.peak_allocated_bytes for phase in self.phases if phase.phase is PhaseName.EVALUATION)
        return max(peaks, default=None)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The answer.

    Attributes:
        maximum: Largest micro-batch that was run and fits; 0 when none does.
        recommended: Largest tested micro-batch that fits with the headroom withheld; 0 when none does.
        limited_by: What ended the search: `memory` (the next size ran out), `target` (nothing above the per-device
            target is tried), `limit` (the next size met a limit that is not memory).
        smallest: Smallest micro-batch that the model accepts; above 1 for a BatchNorm that refuses one sample.
        plain_maximum: Largest micro-batch of a step that accumulates nothing, which may be larger because no gradients
            stay alive during the forward; None where the steps are such in any case, or it was not looked for.
    """

    maximum: int
    recommended: int
    limited_by: Literal["memory", "target", "limit"]
    smallest: int = 1
    plain_maximum: int | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class LeastMemory:
    """Memory of a size whose convolutions take workspaces, which they give up where there is no room.

    Attributes:
        micro_batch: The recommended size; the maximum where none is recommended.
        peak_reserved_bytes: Most bytes held from the driver with all the memory that the size was given.
        least_bytes: Smallest memory that PyTorch was given in which the size ran.
        ran_out_bytes: Largest below it in which it ran out; None where it ran in all that were tried.
        trials: How many were run to find it.
    """

    micro_batch: int
    peak_reserved_bytes: int
    least_bytes: int
    ran_out_bytes: int | None
    trials: int


@dataclass(frozen=True, slots=True)
class Device:
    """Device that the trials ran on.

    Attributes:
        kind: `cuda` (a real GPU), `null` (PyTorch's CUDA code on a null GPU) or `trace` (allocations replayed through a
            simulated allocator).
        name: As PyTorch prints it.
        compute_capability: Such as `8.9`.
        total_bytes: Memory of the device as PyTorch sees it.
        context_bytes: Bytes that the CUDA context holds; measured on `cuda`, from the catalogue on `null`; None when
            not known.
        other_processes_bytes: Bytes that other processes held when the probe began; None when not known.
        reserve_bytes: Bytes that others were said to hold besides; None where nothing was said.
    """

    kind: Literal["cuda", "null", "trace"]
    name: str
    compute_capability: str
    total_bytes: int
    context_bytes: int | None = None
    other_processes_bytes: int | None = None
    reserve_bytes: int | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a choice was made or where a number was had from.

    Attributes:
        subject: What it is about, such as `device`, `capacity`, `context`, `cudnn_workspace`, `optimizer`.
        text: One sentence.
    """

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank of a world, which ran without the others.

    Attributes:
        rank: Its number in the world.
        maximum: Largest micro-batch that fits on it.
        recommended: Largest that fits with the headroom withheld.
        limited_by: As in `MicroBatch`.
        peak_allocated_bytes: Most bytes in live tensors at the answer of all ranks; None where nothing fits.
        peak_reserved_bytes: Most bytes held from the driver there.
        phases: Memory by phase there.
    """

    rank: int
    maximum: int
    recommended: int
    limited_by: Literal["memory", "target", "limit"]
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class NcclMemory:
    """NCCL's communicators of a rank; their memory is outside of PyTorch's allocator and is in no other figure.

    Attributes:
        communicators: Number of ranks of each, in the order in which they were made.
        published_range_bytes: Least and most bytes that a process was reported to hold for its communicators.
        sources: Where these figures are from.
    """

    communicators: tuple[int, ...]
    published_range_bytes: tuple[int, int]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Guidance:
    """Prediction of the trace engine, at which the search on a real GPU began.

    Attributes:
        guesses: The largest micro-batch as it was predicted; another for each capacity that was measured meanwhile.
            Empty where nothing could be predicted.
        problem: Why nothing could be predicted; None where something was.
    """

    guesses: tuple[int, ...]
    problem: str | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Everything that a probe found.

    Attributes:
        target: The reference to the user's file or example as it was given; for a command, the command in one line.
        precision: `fp32`, `bf16` or `fp16`; for a command, that nobody knows it.
        optimizer: Name of the optimizer that ran, such as `AdamW`.
        micro_batch: The answer.
        accumulation: How to reach the target batch with the fewest steps, which may have micro-batches up to the
            maximum; None when nothing fits or there is no target batch.
        capacity_bytes: Bytes that PyTorch may take from the device.
        headroom: Part of the capacity that the recommended size leaves free, between 0 and 1.
        weights_bytes: Bytes of the model's parameters and buffers; None when not known.
        device: Where the trials ran.
        stable: False when other processes' memory moved meanwhile, so that another run may answer otherwise.
        trials: Every trial in the order it ran.
        phases: Memory by phase at the maximum; at the size that got furthest where nothing fits.
        reasons: Why each automatic choice was made, and where each number was had from.
        warnings: What the reader should know before relying on the answer.
        memory: What memory is made of at one micro-batch; None where nothing fits or it could not be recorded.
        command_plan: What to start, where a command was probed; else None.
        guide: What the search was begun with; None where it had no guide.
        variant: How each trial differed from the target's plain step; None for a command, which decides that itself.
        recommended_accumulation: How to reach the target batch with micro-batches up to the recommended size; None when
            no size is recommended or there is no target batch.
        target_samples: Samples per optimizer step over all devices that were asked for; None where none were.
        least_memory: Memory in which the recommended size still runs, where workspaces make up enough of its peak that
            it may be less; None where they do not, or where that was not looked for.
        ranks: Ranks of a world that ran without the others, in ascending order; empty where nothing ran so.
        limited_by_rank: The rank whose maximum is the answer; None where there are no ranks.
        nccl: Communicators of that rank; None where there are no ranks.
        throughput: How fast each of several sizes trains; None where that was not asked for.
        generation: What generating takes at the maximum; None in the other modes, or where nothing fits.
        evaluation: What an evaluation between training steps takes at the maximum, and whether it limits the size; None
            where none was asked for, or nothing fits.
    """

    target: str
    precision: str
    optimizer: str
    micro_batch: MicroBatch
    accumulation: Accumulation | None
    capacity_bytes: int
    headroom: float
    weights_bytes: int | None
    device: Device
    stable: bool
    trials: tuple[Trial, ...]
    phases: tuple[Phase, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...] = ()
    memory: StepMemory | None = field(default=None, metadata=ADDED_LATER)
    command_plan: CommandPlan | None = field(default=None, metadata=ADDED_LATER)
    guide: Guidance | None = field(default=None, metadata=ADDED_LATER)
    variant: Variant | None = field(default=None, metadata=ADDED_LATER)
    recommended_accumulation: Accumulation | None = field(default=None, metadata=ADDED_LATER)
    target_samples: int | None = field(default=None, metadata=ADDED_LATER)
    least_memory: LeastMemory | None = field(default=None, metadata=ADDED_LATER)
    ranks: tuple[RankResult, ...] = field(default=(), metadata=ADDED_LATER)
    limited_by_rank: int | None = field(default=None, metadata=ADDED_LATER)
    nccl: NcclMemory | None = field(default=None, metadata=ADDED_LATER)
    throughput: Throughput | None = field(default=None, metadata=ADDED_LATER)
    generation: GenerationMemory | None = field(default=None, metadata=ADDED_LATER)
    evaluation: EvaluationMemory | None = field(default=None, metadata=ADDED_LATER)

    @property
    def mode(self) -> Mode:
        """What was done with the model."""
        return "train" if self.variant is None else self.variant.mode

    @property
    def plan(self) -> Accumulation:
        """Accumulation plan, for a training script that cannot go on without it.

        Raises:
            NoAnswerError: Nothing fits, or no target batch was given, so that there is none.
        """
        if self.accumulation is None:
            problem = "no sizes that ran reach the target batch" if self.micro_batch.maximum else "nothing fits"
            hint = "probe it again after a change; whoever can go on without a plan reads `result.accumulation`"
            if self.mode != "train":
                problem, hint = f"`{self.mode}` accumulates nothing", "its answer is `result.micro_batch`"
            elif self.micro_batch.maximum and self.target_samples is None:
                problem, hint = "no target batch was given", "probe it with a target batch: `--target-batch 256`"
            raise NoAnswerError(f"there is no plan for `{self.target}` on {self.device.name}: {problem}", hint=hint)
        return self.accumulation
