"""A trial of a command that is begun before the search asks for it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.command.trial import EndedTrial

TrialSize: TypeAlias = tuple[int, int, int]
"""Micro-batch, accumulation steps and allowed bytes of a trial."""


class SpeculativeTrial:
    """A trial that is begun before the search asks for it, beside the one that it has asked for; at most one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._running: tuple[TrialSize, CancelToken, Future[EndedTrial]] | None = None

    def begin(self, size: TrialSize, run: Callable[[CancelToken], EndedTrial]) -> None:
        """Begin a trial, in place of one that nobody has asked for meanwhile."""
        self.drop()
        stop = CancelToken()
        self._running = size, stop, self._pool.submit(run, stop)

    def take(self, size: TrialSize) -> EndedTrial | None:
        """Wait for the trial of this size to end and return it; None where it was not begun.

        Raises:
            KeyboardInterrupt: A stop was set.
        """
        if self._running is None or self._running[0] != size:
            return None
        (_, _, future), self._running = self._running, None
        return future.result()

    def drop(self) -> None:
        """End the trial that was begun, if there is one."""
        if self._running is not None:
            (_, stop, future), self._running = self._running, None
            stop.set()
            future.exception()

    def close(self) -> None:
        """End the thread."""
        self.drop()
        self._pool.shutdown()
