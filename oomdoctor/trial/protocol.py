"""Messages between the parent and its worker, typed on both sides, and how they are sent: one line of JSON a message.

A `Question` names the type of its answer, so that the type checker sees both sides. A message has the protocol's
version, the kind of message and its fields. The user's code prints to stdout and stderr; its pipes are others, so that
no print can be taken for an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args

from oomdoctor.codec import decode, encode

# What reads a message goes by the annotations of its fields.
from oomdoctor.engines.catalogue import Card  # noqa: TC001
from oomdoctor.results import Variant  # noqa: TC001
from oomdoctor.search.growth import PLAIN_ITERATIONS
from oomdoctor.target.reference import Reference  # noqa: TC001
from oomdoctor.trial.worker_answers import (
    Bug,
    CardFitted,
    CostCounted,
    DependenciesSeen,
    DeviceCard,
    Died,
    Failed,
    LoadedTarget,
    PredictedMax,
    ProfileDone,
    SettingsChanged,
    StepTimed,
    TargetReleased,
    TargetWritten,
    TrialDone,
    Verified,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.trial.process import Message, WorkerChannel

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class Question(Generic[AnswerT_co]):
    """A message to the worker that is answered by an `AnswerT_co`, or by `Failed` or `Bug`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AskDevice(Question[DeviceCard]):
    """Describe the GPU; asked before the target is loaded."""


@dataclass(frozen=True, slots=True)
class LoadTarget(Question[LoadedTarget]):
    """Import the target, build its model and place it on the device; asked once, or again after `ReleaseTarget`.

    Attributes:
        reference: The target.
        variant: How trials differ from the plain step.
        memory_bytes: Capacity to keep to, or None for what the device has.
        card_bytes: Memory in all of a smaller card to play, or None; its CUDA context is that of the device.
        others_bytes: Bytes that other processes hold; reserve_bytes: bytes that others are going to hold besides.
        world_size: Devices that share the target batch.
        watched: Whether to record which files and variables the target uses.
        keeps_settings: Whether to go on where the file sets variables of the allocator, which this worker has.
        is_shared: Whether another model of the file may follow this one in the worker.
    """

    reference: Reference
    variant: Variant
    memory_bytes: int | None
    watched: bool
    keeps_settings: bool = False
    card_bytes: int | None = None
    others_bytes: int = 0
    reserve_bytes: int = 0
    world_size: int = 1
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseTarget(Question[TargetReleased]):
    """Let go of the model and all that its trials left, so that another model of the same file can be loaded."""


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
        without_evaluation: Whether no evaluation comes between the training steps, although the variant has one.
        without_graph: Whether an evaluation builds no graph, although the file's own step does.
        all_logits: Whether a model that generates computes the logits of every prompt token.
        draw: Which lengths `make_batch` draws, where it draws any: trials of one number draw the same ones.
    """

    micro_batch: int
    micro_steps: int
    allowed_bytes: int
    iterations: int = PLAIN_ITERATIONS
    until_settled: bool = False
    leaks: bool = False
    without_evaluation: bool = False
    without_graph: bool = False
    all_logits: bool = False
    draw: int = 0


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
class TimeStep(Question[StepTimed]):
    """Time a whole optimizer step, warm, with its micro-batches in this order."""

    micro_batches: tuple[int, ...]
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
    | ReleaseTarget
    | RunTrial
    | ReplayTrials
    | ProfileTrial
    | CountCost
    | TimeStep
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
    | TargetReleased
    | TrialDone
    | PredictedMax
    | ProfileDone
    | CostCounted
    | StepTimed
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


PROTOCOL_VERSION: Final = 1

MessageT = TypeVar("MessageT")
_QUESTIONS: Final[Mapping[str, type[AnyQuestion]]] = {kind.__name__: kind for kind in get_args(AnyQuestion)}
_ANSWERS: Final[Mapping[str, type[AnyAnswer]]] = {kind.__name__: kind for kind in get_args(AnyAnswer)}


def send(channel: WorkerChannel, message: Question[object] | AnyAnswer) -> None:
    """Write one message.

    Raises ChannelClosedError where the other side is gone.
    """
    channel.send({"version": PROTOCOL_VERSION, "kind": type(message).__name__, "fields": encode(message)})


def receive_answer(channel: WorkerChannel, timeout_seconds: float) -> AnyAnswer:
    """Read the worker's next message.

    Raises:
        ChannelClosedError: The worker is gone.
        ChannelTimeoutError: Nothing came within `timeout_seconds`.
        KeyboardInterrupt: The stop was set.
        RuntimeError: It is no answer, or one of another version.
    """
    data = channel.receive(timeout_seconds)
    if data.get("event") == "died":  # the guardian's, which imports nothing of ours
        return Died(data["return_code"])
    return _message(_ANSWERS, data)


def receive_question(channel: WorkerChannel) -> AnyQuestion:
    """Read the parent's next message.

    Raises:
        ChannelClosedError: The parent is gone.
        RuntimeError: It is no question, or one of another version.
    """
    return _message(_QUESTIONS, channel.receive())


def _message(kinds: Mapping[str, type[MessageT]], data: Message) -> MessageT:
    if data.get("version") != PROTOCOL_VERSION or data.get("kind") not in kinds:
        raise RuntimeError(f"not a message of version {PROTOCOL_VERSION} of the protocol: {str(data)[:200]}")
    return decode(kinds[data["kind"]], data["fields"], data["kind"])
