"""How a check tells what it is doing, without knowing who listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oomdoctor.errors import OomdoctorError
    from oomdoctor.results import ProbeResult


class CheckProgress(Protocol):
    """Told of each entry when it begins and when it ends, from several threads at once."""

    def started(self, name: str) -> None:
        """An entry began.

        Args:
            name: Its name.
        """

    def finished(self, name: str, answer: ProbeResult | OomdoctorError, *, seconds: float, is_cached: bool) -> None:
        """It ended.

        Args:
            name: Its name.
            answer: What was found, or why nothing could be.
            seconds: Since it began.
            is_cached: Whether the answer was known.
        """
