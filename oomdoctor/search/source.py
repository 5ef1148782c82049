"""The contract of a source of trials: what a trial does, what it measures, and what counts as out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oomdoctor.multi_card.fit import CardFit
    from oomdoctor.results import Trial


class TrialSource(Protocol):
    """Runs trials, each of which finds memory as the one before it found it.

    Attributes:
        capacity_bytes: Bytes that PyTorch may take, as last measured.
        problem: Message, hint and details of the last trial that failed for another reason than memory, and the name
            of the error's class as `kind`.
        replaced: Workers that were replaced because a trial had left memory behind.
        optimizer_name: Class name of the optimizer that ran.
        loss_is_finite: False once a loss was NaN or infinite.
        zeros_read: Most times that one trial's step read data back from a null GPU.
        unknown_calls: Names of CUDA calls that the null GPU was asked for and does not serve.
    """

    capacity_bytes: int
    problem: dict[str, str | None] | None
    replaced: int
    optimizer_name: str
    loss_is_finite: bool
    zeros_read: int
    unknown_calls: tuple[str, ...]

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: A crash or the time limit.
        """

    def foresee(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """The largest size between two that should fit; None where nobody can say."""


class WarmStart(Protocol):
    """Guesses what a search will find, so that it can begin there."""

    def guess(self, capacity_bytes: int) -> CardFit | None:
        """What it takes for the answer with so much memory; None where it cannot say."""
