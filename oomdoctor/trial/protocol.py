"""Messages between the parent and its worker, typed on both sides; `oomdoctor.trial.wire` sends them.

A `Question` names the type of its answer, so that the type checker sees both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from oomdoctor.agent.messages import UnknownRead  # noqa: TC001

# What reads a message goes by the annotations of its fields.
from oomdoctor.engines.catalogue import Card  # noqa: TC001
from oomdoctor.remedies.file_edit import AppliedChange  # noqa: TC001
from oomdoctor.results import Outcome, Phase, StepMemory, Trial, Variant  # noqa: TC001
from oomdoctor.results.fit import CardFit  # noqa: TC001
from oomdoctor.results.prescribe import StepCost  # noqa: TC001
from oomdoctor.results.verify import VerifyResult  # noqa: TC001
from oomdoctor.search.growth import PLAIN_ITERATIONS
from oomdoctor.search.trial_source import TrialProblem  # noqa: TC001
from oomdoctor.target.reference import Reference  # noqa: TC001
from oomdoctor.trial.dependencies import Dependencies  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Mapping

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

# --- answers ---------------------------------------------------------------------------------------------------------


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
    """

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """Answer that the model is on the device.

    Attributes:
        name: The device's name.
        compute_capability: Such as `8.9`.
        has_kernels: Whether this torch was built for such a card.
        total_bytes: Its memory.
        used_before_bytes: Bytes in use before the model: the context, and other processes on a real GPU.
        capacity_bytes: Bytes that PyTorch may take.
        weights_bytes: Bytes of parameters and buffers; None where nobody counted them.
        placement_error: Text of the OOM when the model alone does not fit, else None.
        held: Memory once the model is there, from which every trial has to start.
        phases: Memory while loading.
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


@dataclass(frozen=True, slots=True)
class CostCounted:
    """Cost of a step, and the memory that is left after it."""

    cost: StepCost
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
    """

    memory: StepMemory | None
    reason: str | None
    outcome: Outcome


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


# --- questions -------------------------------------------------------------------------------------------------------


class Question(Generic[AnswerT_co]):
    """A message to the worker that is answered by an `AnswerT_co`, or by `Failed` or `Bug`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AskDevice(Question[DeviceCard]):
    """Describe the GPU; asked before the target is loaded."""


@dataclass(frozen=True, slots=True)
class LoadTarget(Question[LoadedTarget]):
    """Import the target, build its model and place it on the device; asked once.

    Attributes:
        reference: The target.
        variant: How trials differ from the plain step.
        memory_bytes: Capacity to keep to, or None for what the device has.
        card_bytes: Memory in all of a smaller card to play, or None; its CUDA context is that of the device.
        others_bytes: Bytes that other processes hold; reserve_bytes: bytes that others are going to hold besides.
        watched: Whether to record which files and variables the target uses.
        keeps_settings: Whether to go on where the file sets variables of the allocator, which this worker has.
    """

    reference: Reference
    variant: Variant
    memory_bytes: int | None
    watched: bool
    keeps_settings: bool = False
    card_bytes: int | None = None
    others_bytes: int = 0
    reserve_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunTrial(Question[TrialDone]):
    """Run one trial.

    Attributes:
        micro_batch: Samples in one forward and backward.
        micro_steps: Micro-batches in each optimizer step.
        allowed_bytes: Most bytes that the allocator may hold.
        iterations: Optimizer steps.
        until_settled: Whether to end before, once memory no longer grows from step to step.
        leaks: Whether memory is known to grow without end; else a trial whose cache was given back takes more steps.
    """

    micro_batch: int
    micro_steps: int
    allowed_bytes: int
    iterations: int = PLAIN_ITERATIONS
    until_settled: bool = False
    leaks: bool = False


@dataclass(frozen=True, slots=True)
class TrialAllocations:
    """The allocator's events of a trial that fits, packed, with its size."""

    micro_batch: int
    allocations: str


@dataclass(frozen=True, slots=True)
class ReplayTrials(Question[PredictedMax]):
    """Predict the largest size from the allocations of earlier trials.

    Attributes:
        trials: Those trials.
        low: A size that fits, or 0.
        high: A size that does not fit, or one above the largest in question.
        allowed_bytes: Most bytes that the allocator may hold.
        retries: Whether the allocator may give back its cache and try again.
    """

    trials: tuple[TrialAllocations, ...]
    low: int
    high: int
    allowed_bytes: int
    retries: bool


@dataclass(frozen=True, slots=True)
class ProfileTrial(Question[ProfileDone]):
    """Run one trial and record its memory by category and module.

    Attributes:
        trial: The trial.
        peak_allocated_bytes: The peak that it had when it was not recorded.
    """

    trial: RunTrial
    peak_allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class CountCost(Question[CostCounted]):
    """Run one forward and backward of a size that fits, and count what they compute and touch."""

    micro_batch: int
    allowed_bytes: int


@dataclass(frozen=True, slots=True)
class ReportDependencies(Question[DependenciesSeen]):
    """Report the files and variables that the target has used; asked only where it is watched."""


@dataclass(frozen=True, slots=True)
class LoadForCards(Question[LoadedTarget]):
    """Load the target on an emulated device, to ask about many cards; asked once.

    Attributes:
        load: The target.
        cards: Every card that will be asked about.
        target_batch: Samples per optimizer step over all devices; None for plain steps.
        world_size: Devices that share it.
        is_expendable: Whether the kernel shall end this worker first where the host's memory is out.
    """

    load: LoadTarget
    cards: tuple[Card, ...]
    target_batch: int | None
    world_size: int
    is_expendable: bool


@dataclass(frozen=True, slots=True)
class FitCard(Question[CardFitted]):
    """Find one card's answer without a trial on it.

    Attributes:
        gpu: The card's key.
        headroom: Part of the capacity that the recommended size leaves free.
        capacity_bytes: Bytes that PyTorch may take of it; None for all that the context leaves.
    """

    gpu: str
    headroom: float
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True)
class VerifyTarget(Question[Verified]):
    """Compare accumulated micro-batches with the whole batch, on the CPU; see `oomdoctor.verification.target`.

    Attributes:
        reference: The target.
        samples: Samples of the whole batch.
        parts: Equal micro-batches that it is cut into.
        precision: `fp64` or `fp32`.
        limit_seconds: Longest time that the runs may be expected to take.
    """

    reference: Reference
    samples: int
    parts: int
    precision: Literal["fp64", "fp32"]
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class WriteTarget(Question[TargetWritten]):
    """Write the file that a shorthand stands for; nothing is loaded."""

    reference: Reference


AnyQuestion = (
    AskDevice
    | LoadTarget
    | RunTrial
    | ReplayTrials
    | ProfileTrial
    | CountCost
    | ReportDependencies
    | LoadForCards
    | FitCard
    | VerifyTarget
    | WriteTarget
)
AnyAnswer = (
    DeviceCard
    | LoadedTarget
    | SettingsChanged
    | TrialDone
    | PredictedMax
    | ProfileDone
    | CostCounted
    | DependenciesSeen
    | CardFitted
    | Verified
    | TargetWritten
    | Failed
    | Bug
    | Died
)


def answer_type(question: Question[AnswerT]) -> type[AnswerT]:
    """Return the type of a question's answer."""
    base: Any = type(question).__orig_bases__[0]  # type: ignore[attr-defined]
    kind: type[AnswerT] = get_args(base)[0]
    return kind
