"""Answers of the worker to the parent's questions; see `oomdoctor.trial.protocol`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.agent.messages import UnknownRead  # noqa: TC001

# What reads a message goes by the annotations of its fields.
from oomdoctor.engines.catalogue import Card  # noqa: TC001
from oomdoctor.remedies.file_edit import AppliedChange  # noqa: TC001
from oomdoctor.results import GenerationMemory, Outcome, Phase, StepMemory, Trial  # noqa: TC001
from oomdoctor.results.fit import CardFit  # noqa: TC001
from oomdoctor.results.prescribe import StepCost  # noqa: TC001
from oomdoctor.results.verify import VerifyResult  # noqa: TC001
from oomdoctor.search.trial_source import TrialProblem  # noqa: TC001
from oomdoctor.trial.dependencies import Dependencies  # noqa: TC001
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class DeviceCard:
    """The GPU that the worker sees, before anything is loaded."""

    card: Card


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory that PyTorch holds between trials.

    Attributes:
        allocated_bytes: In live tensors.
        reserved_bytes: From the driver.
        is_spent: Whether the worker can run no other trial, because the last one failed halfway through a step.
    """

    allocated_bytes: int
    reserved_bytes: int
    is_spent: bool = False


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """Answer that the model is on the device.

    Attributes:
        name: The device's name, with its `compute_capability`, such as `8.9`, and `total_bytes`, its memory.
        has_kernels: Whether this torch was built for such a card.
        used_before_bytes: Bytes in use before the model: the context, and other processes on a real GPU.
        capacity_bytes: Bytes that PyTorch may take.
        weights_bytes: Bytes of parameters and buffers; None where nobody counted them.
        placement_error: Text of the OOM when the model alone does not fit, else None.
        held: Memory once the model is there, from which every trial has to start; `phases` are those of loading.
        found: Functions of the target's file: name to where it was found; `versions` likewise, of what runs.
        memory_fraction: Part of the device's memory that the target's file allows PyTorch to take; 1 by default.
        changes: What the variant changed in the target.
    """

    name: str
    compute_capability: str
    has_kernels: bool
    total_bytes: int
    used_before_bytes: int
    capacity_bytes: int
    weights_bytes: int | None
    placement_error: str | None
    held: HeldMemory
    phases: tuple[Phase, ...]
    found: dict[str, str]
    versions: dict[str, str]
    memory_fraction: float = 1.0
    changes: tuple[AppliedChange, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Answer that the target's file sets variables that PyTorch's allocator has read already, each with its value.

    The parent starts a worker with them instead; None is a variable that the file has removed.
    """

    variables: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class TargetReleased:
    """Answer that a target is gone from the worker.

    Attributes:
        is_clean: Whether the worker is as it was before the model was built, as far as that is known.
        sources: Files of the user's code that the worker has imported, each with the time of its last change in ns.
    """

    is_clean: bool
    sources: dict[str, int]


class SettingsChangedError(Exception):
    """The target's file sets variables of PyTorch's allocator, so that it needs a worker that has them."""

    def __init__(self, variables: Mapping[str, str | None]) -> None:
        super().__init__(f"the target's file sets {', '.join(variables)}")
        self.variables = variables

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the variables as the file has them."""
        return {name: value for name, value in {**base, **self.variables}.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One trial has ended.

    Attributes:
        trial: How.
        problem: The error of a trial that failed for another reason than memory; else None.
        allocations: The allocator's events, packed, where the trial fits; see `oomdoctor.agent.allocator_blocks`.
        loss_is_finite: False where a loss was NaN or infinite.
        zeros_read: Times that the step read data back from a null GPU; `unknown_reads`: the target's lines that did so.
        optimizer: Class name of the optimizer; empty where it was never built.
        held: Memory that is left; `capacity_bytes`: bytes that PyTorch may take now.
        unknown_calls: Names of CUDA calls that the null GPU was asked for and does not serve.
        assumptions: Memory that is counted by a rule, or not at all, by name.
        memory_fraction: As in `LoadedTarget`; a step may set it too.
        ends: Bytes in live tensors at the end of each optimizer step.
        holder: What holds the memory that is left, in words; looked for only where the trial went on until settled.
        host_bytes: Most bytes that a forward has moved to the host, where activations are offloaded.
        is_fresh: Whether a new worker would have done the same.
        communicators: Number of ranks of each NCCL communicator of a rank.
        builds_graph: Whether an evaluation built a graph, for a backward that never comes.
        generation: What generating took besides the model; None in the other modes.
        keeps_memory: Whether the target's objects kept memory of this trial or of one before it in this worker; it was
            taken from them.
    """

    trial: Trial
    problem: TrialProblem | None
    allocations: str
    loss_is_finite: bool
    zeros_read: int
    unknown_reads: tuple[UnknownRead, ...]
    optimizer: str
    held: HeldMemory
    capacity_bytes: int
    unknown_calls: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    memory_fraction: float = 1.0
    ends: tuple[int, ...] = ()
    holder: str | None = None
    host_bytes: int = 0
    is_fresh: bool = True
    communicators: tuple[int, ...] = ()
    builds_graph: bool = False
    generation: GenerationMemory | None = None
    keeps_memory: bool = False


@dataclass(frozen=True, slots=True)
class CostCounted:
    """Cost of a step, and the memory that is left after it."""

    cost: StepCost
    held: HeldMemory


@dataclass(frozen=True, slots=True)
class StepTimed:
    """Seconds of a whole optimizer step, None where memory runs out; the most bytes reserved, and what is left."""

    seconds: float | None
    peak_reserved_bytes: int
    held: HeldMemory


@dataclass(frozen=True, slots=True)
class PredictedMax:
    """The largest size that a replay can place; None where no trials can be replayed."""

    size: int | None


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """The profile of memory at one size.

    Attributes:
        memory: Memory by category and module; None where it could not be had.
        reason: Why it could not be had, or what it lacks; None where there is nothing to say.
        outcome: How the trial ended.
        is_fresh: Whether a new worker would have done the same, as far as that is known.
    """

    memory: StepMemory | None
    reason: str | None
    outcome: Outcome
    is_fresh: bool = True


@dataclass(frozen=True, slots=True)
class ProfileDone:
    """A profile, and the memory that is left after it."""

    profile: ProfileOutcome
    held: HeldMemory


@dataclass(frozen=True, slots=True)
class DependenciesSeen:
    """Files and variables that the target has used so far."""

    dependencies: Dependencies


@dataclass(frozen=True, slots=True)
class CardFitted:
    """One card's answer, and what the target asked about the GPU."""

    fit: CardFit
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found, and the versions that it ran with."""

    result: VerifyResult
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class TargetWritten:
    """The file of a shorthand."""

    source: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer that is an error of ours, after which the parent asks no more."""

    problem: TrialProblem


@dataclass(frozen=True, slots=True)
class Bug:
    """The traceback of an error in the worker itself."""

    details: str


@dataclass(frozen=True, slots=True)
class Died:
    """The worker has ended, as its guardian reports."""

    return_code: int


def differing_peaks(peaks_bytes: Sequence[int]) -> str:
    """Say how far apart the peaks of trials at one size were."""
    least, most = format_size(min(peaks_bytes)), format_size(max(peaks_bytes))
    apart = format_size(max(peaks_bytes) - min(peaks_bytes))
    told = f"{least} to {most}" if least != most else f"{most}, {apart} apart"
    return (
        f"no two trials of this target allocate the same memory: at this size {told}, and training may need more; "
        "where `make_batch` draws lengths at random, let it make the longest"
    )
