"""The progress of a probe, as its caller is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oomdoctor.results import Trial


class Progress(Protocol):
    """Told what a probe is doing; `close` may be called twice and belongs in a `finally`."""

    def stage(self, text: str) -> None:
        """Something other than a trial began, such as `starting the worker`."""

    def trial_started(self, micro_batch: int, low: int, high: int) -> None:
        """A trial began.

        Args:
            micro_batch: The size under trial.
            low: Largest size known to fit, 0 where none is.
            high: Smallest size known not to fit; one above the largest size in question where none is.
        """

    def trial_finished(self, trial: Trial) -> None:
        """The trial ended."""

    def close(self) -> None:
        """Nothing more will come."""


class SilentProgress:
    """Says nothing."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def trial_started(self, micro_batch: int, low: int, high: int) -> None:
        """Say nothing."""

    def trial_finished(self, trial: Trial) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Do nothing."""
