"""The result of a verification: the gradient of the whole batch beside that of accumulated micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

VerifyVerdict: TypeAlias = Literal["equal", "equal_if_weighted", "random_only", "different", "cannot_tell"]
Weighting: TypeAlias = Literal["mean", "sum", "count", "fitted", "as_run"]
"""How the losses of micro-batches are weighted: by their samples, not at all, by a count, by a least-squares fit, or as
a command does it."""
VerifyCauseId: TypeAlias = Literal[
    "batch_norm",
    "module",
    "model",
    "pairs",
    "loss",
    "state",
    "buffers",
    "not_repeatable",
    # of commands
    "zero_grad",
    "boundary",
    "division",
    "divided_twice",
    "scale",
    "weights",
    "clip",
    "scheduler",
    "average",
    "moved_weights",
    "partial_window",
    "mixing",
    "samples",
    "other_weights",
    "random_draws",
    "several_optimizers",
]


@dataclass(frozen=True, slots=True)
class GradientError:
    """The relative error of an accumulated gradient.

    Attributes:
        weighting: How the micro-batches' losses were weighted.
        sizes: Samples of each micro-batch.
        weights: The factor of each loss; empty for a command's own.
        error: Norm of the difference from the whole batch's gradient over the norm of that gradient.
    """

    weighting: Weighting
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    error: float


@dataclass(frozen=True, slots=True)
class VerifyCause:
    """Why accumulating is not the whole batch.

    Attributes:
        id: What kind of cause.
        module: Path of the module in the model; None where it is not in a module.
        location: The user's line, as `file:line`; None where there is none.
        evidence: What was seen.
    """

    id: VerifyCauseId
    module: str | None
    location: str | None
    evidence: str


@dataclass(frozen=True, slots=True)
class VerifyRemedy:
    """What makes accumulating train as the whole batch would.

    Attributes:
        change: What to change, in a sentence.
        code: Lines to write; empty where there are none.
        rule: Code of the rule by which `oomdoctor lint` finds the same in a training loop; None where there is none.
    """

    change: str
    code: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What `oomdoctor verify` found.

    Attributes:
        target: The target, as it was named; of a command, its words in one line.
        samples: Samples of the whole batch.
        precision: Type in which it was computed; `as_run` for a command's own.
        tolerance: Relative error up to which gradients count as equal.
        verdict: `equal`; `equal_if_weighted` (the remedy says how); `random_only` (equal but for random draws);
            `different`; `cannot_tell` (the step itself does not repeat, or the runs of a command cannot be compared).
        gradient_error: Error of equal micro-batches whose losses are divided by their number, as most loops do it; of a
            command, that of its first step.
        weighted_error: The same with the remedy's weights; None where no weights help.
        weights_error: Relative difference of the weights' change by one step of SGD, with the best weights; None for a
            command.
        errors: Every way in which the micro-batches were weighted, on equal and unequal ones.
        random_error: Difference between two runs of the whole batch with other random numbers; None for a
            command.
        reversed_error: Difference between the whole batch and its samples in reversed order; None where they cannot be
            reversed.
        random_operators: Operators that drew random numbers.
        changed_buffers: Buffers that differ afterwards, by name.
        causes: Why it is not equal, the first to mend first.
        remedies: What makes it equal, in the order in which to do it.
        notes: What to know before relying on the verdict.
    """

    target: str
    samples: int
    precision: Literal["fp64", "fp32", "as_run"]
    tolerance: float
    verdict: VerifyVerdict
    gradient_error: float
    weighted_error: float | None
    weights_error: float | None
    errors: tuple[GradientError, ...]
    random_error: float | None
    reversed_error: float | None
    random_operators: tuple[str, ...]
    changed_buffers: tuple[str, ...]
    causes: tuple[VerifyCause, ...]
    remedies: tuple[VerifyRemedy, ...]
    notes: tuple[str, ...]
