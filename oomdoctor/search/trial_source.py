"""The contract of a source of trials, and what its trials tell besides their results.

A trial is one attempt at one micro-batch size. It runs at least two optimizer steps, because the first creates the
optimizer's state and only the second has the peak that training has; where gradients will be accumulated, each step has
two micro-steps, because gradients that stay alive show in the second forward only. It measures what
`oomdoctor.results.Trial` holds: the peaks of allocated and reserved memory, the bytes that stay between micro-steps,
memory by phase, and how often the allocator had to give back its cache. Its outcome is `oom` only where the table of
`oomdoctor.oom` says so of the error, or where the allocator itself ran out and the user's code caught the error; a
crash is never taken for it. The next trial starts from the memory that the first one started from.

Sources: `oomdoctor.trial.client` (the user's file in a worker), `oomdoctor.command` (the user's own command),
`oomdoctor.multi_card` (a traced step, placed on a simulated allocator of each card). A test under
`oomdoctor.pytest_plugin` is measured as a trial is, and nothing searches over its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

from oomdoctor.errors import KINDS
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.agent.messages import UnknownRead
    from oomdoctor.errors import OomdoctorError
    from oomdoctor.results import GenerationMemory, Trial
    from oomdoctor.search.growth import StepGrowth

_ERRORS: Final = {kind.__name__: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class TrialProblem:
    """An error of ours as text, such as that of a trial that failed for another reason than memory.

    Attributes:
        kind: Name of its class in `oomdoctor.errors`.
        message: What is wrong.
        hint: What to do; None where nobody can say.
        details: More lines, such as a traceback; None for none.
    """

    kind: str
    message: str
    hint: str | None
    details: str | None

    @classmethod
    def of(cls, error: OomdoctorError) -> Self:
        """Return an error as text, under the nearest of our classes."""
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS)
        return cls(kind, error.message, error.hint, error.details)

    def error(self) -> OomdoctorError:
        """Return the error."""
        return _ERRORS[self.kind](self.message, hint=self.hint, details=self.details)


class EndedProcess(Protocol):
    """What a process that ran a trial says of it; see `TrialNotes`."""

    @property
    def optimizer(self) -> str | None:
        """Return the class name of the optimizer."""

    @property
    def zeros_read(self) -> int:
        """Return how often it read data back from a null GPU."""

    @property
    def unknown_reads(self) -> tuple[UnknownRead, ...]:
        """Return the lines that did so."""

    @property
    def unknown_calls(self) -> tuple[str, ...]:
        """Return the CUDA calls that the null GPU does not serve."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the memory that it counts by a rule, or not at all."""


@dataclass(frozen=True, slots=True)
class EvaluationGraph:
    """Graph of an evaluation, for a backward that never comes.

    Attributes:
        batch: Samples in each batch of the evaluation that was measured.
        peak_bytes: Peak of the evaluation as it is.
        peak_without_bytes: Peak of the same under `torch.no_grad()`.
    """

    batch: int
    peak_bytes: int
    peak_without_bytes: int

    def warning(self) -> str:
        """Return a sentence for the result: what the graph costs, and how to do without."""
        saved = format_size(max(0, self.peak_bytes - self.peak_without_bytes))
        return (
            f"the evaluation builds a graph for a backward that never comes: {saved} of its peak of "
            f"{format_size(self.peak_bytes)} with batches of {self.batch}; {_NO_GRAD}"
        )


@dataclass(frozen=True, slots=True)
class EvaluationTooLarge:
    """An evaluation that no size of training fits with, or no size of an evaluation alone.

    Attributes:
        micro_batch: Size that ran out, the smallest of all.
        batch: Samples in each batch of the evaluation, where they are another number; None where they are not.
        trains: Whether the size trains where nothing is evaluated between; None where nothing trains.
        fits_without_graph: Whether the size fits with the evaluation under `torch.no_grad()`.
    """

    micro_batch: int
    batch: int | None
    trains: bool | None
    fits_without_graph: bool

    def warnings(self) -> Iterator[str]:
        """Yield sentences for the result: what to change so that something fits; none where nothing is known."""
        if self.fits_without_graph:
            yield (
                "the evaluation builds a graph for a backward that never comes: without it micro-batch "
                f"{self.micro_batch} fits; {_NO_GRAD}"
            )
        if self.trains:
            yield (
                f"micro-batch {self.micro_batch} fits where nothing is evaluated between the training steps"
                + (f"; a smaller `--eval-batch` than {self.batch} may fit with it" if self.batch else "")
            )


_NO_GRAD: Final = "put `@torch.no_grad()` above `evaluation_step`"


@dataclass(slots=True)
class TrialNotes:
    """Notes that the trials of one source leave besides their results.

    Attributes:
        problem: The last trial's that failed for another reason than memory.
        replaced: Workers that were replaced because a trial had left memory behind.
        optimizer_name: Class name of the optimizer that ran.
        loss_is_finite: False once a loss was NaN or infinite.
        zeros_read: Most times that one trial's step read data back from a null GPU, which answers with zeros.
        unknown_reads: The target's lines that did so.
        unknown_calls: Names of CUDA calls that the null GPU was asked for and does not serve.
        assumptions: Memory that it counts by a rule, or not at all, by name.
        settings: Variables of PyTorch's allocator as the target's file sets them; None where it sets none.
        memory_fraction: Part of the GPU's memory that the target's code allows PyTorch to take; 1 for all of it.
        growth: How memory grew from step to step, where a trial gave a reason to look; else None.
        communicators: Number of ranks of each NCCL communicator of a rank.
        builds_graph: Whether an evaluation built a graph, for a backward that never comes.
        graph: Peaks of an evaluation at one size with its graph and without; None where it built none.
        too_large: The evaluation, where nothing fits with it; else None.
        generation: What generating takes at the maximum; None in the other modes.
    """

    problem: TrialProblem | None = None
    replaced: int = 0
    optimizer_name: str = ""
    loss_is_finite: bool = True
    zeros_read: int = 0
    unknown_reads: tuple[UnknownRead, ...] = ()
    unknown_calls: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    settings: Mapping[str, str | None] | None = None
    memory_fraction: float = 1.0
    growth: StepGrowth | None = None
    communicators: tuple[int, ...] = ()
    builds_graph: bool = False
    graph: EvaluationGraph | None = None
    too_large: EvaluationTooLarge | None = None
    generation: GenerationMemory | None = None

    def add(self, ended: EndedProcess) -> None:
        """Take in what one trial, or one process of it, showed."""
        self.optimizer_name = ended.optimizer or self.optimizer_name
        self.zeros_read = max(self.zeros_read, ended.zeros_read)
        self.unknown_reads = tuple(dict.fromkeys((*self.unknown_reads, *ended.unknown_reads)))
        self.unknown_calls = tuple(dict.fromkeys((*self.unknown_calls, *ended.unknown_calls)))
        self.assumptions = tuple(dict.fromkeys((*self.assumptions, *ended.assumptions)))


class TrialSource(Protocol):
    """Runs trials, each of which finds memory as the one before it found it.

    Attributes:
        capacity_bytes: Bytes that PyTorch may take, as last measured.
        notes: What the trials showed besides their results.
    """

    capacity_bytes: int
    notes: TrialNotes

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial.

        Args:
            micro_batch: Samples in one forward and backward.
            micro_steps: Micro-batches in each optimizer step.
            allowed_bytes: Most bytes that the allocator may hold.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: A crash or the time limit.
        """

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """Predict the largest size between two that fits; None where that cannot be told.

        Args:
            low: A size that fits, or 0.
            high: A size that does not fit, or one above the largest in question.
            allowed_bytes: Most bytes that the allocator may hold.
            retries: Whether the allocator may give back its cache and try again.
        """

    def forget(self) -> None:
        """Predict nothing more from the trials so far: those that follow do something else."""
        return
