"""What a person sees on standard error while a check runs: a line when an entry begins, and one when it ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, TextIO

from oomdoctor.errors import OomdoctorError
from oomdoctor.reports.wording import first_line

if TYPE_CHECKING:
    from oomdoctor.results import ProbeResult


class CheckLines:
    """Writes a line an event.

    Args:
        quiet: Whether to write nothing.
        stream: Where to; standard error by default.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._lock = Lock()

    def started(self, name: str) -> None:
        """Say that an entry began."""
        self._write(f"{name}: running")

    def finished(self, name: str, answer: ProbeResult | OomdoctorError, *, seconds: float, is_cached: bool) -> None:
        """Say what came of it, and whether that was known."""
        took = "cached" if is_cached else f"{seconds:.1f} s"
        self._write(f"{name}: {_outcome(answer)}, {took}")

    def _write(self, line: str) -> None:
        # A log that went away (closed pipe, full disk) must not end the check.
        with self._lock, suppress(OSError, ValueError):
            if not self._quiet:
                self._stream.write(f"{first_line(line)}\n")
                self._stream.flush()


def _outcome(answer: ProbeResult | OomdoctorError) -> str:
    if isinstance(answer, OomdoctorError):
        return "no answer"
    maximum = answer.micro_batch.maximum
    return f"micro-batch {maximum} is the largest that fits" if maximum else "nothing fits"
