"""A trial that is begun before the search asks for it, beside the one that it has asked for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from oomdoctor.probing.stopping import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.probing.command.trial import Ended

Question: TypeAlias = tuple[int, int, int]
"""Micro-batch, accumulation steps and allowed bytes of a trial."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A trial in the other thread.

    Attributes:
        question: What it answers.
        stop: Ends it.
        future: How it ended.
    """

    question: Question
    stop: Stop
    future: Future[Ended]


class Ahead:
    """At most one trial at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._begun: _Begun | None = None

    def begin(self, question: Question, run: Callable[[Stop], Ended]) -> None:
        """Begin a trial, instead of one that nobody has asked for meanwhile."""
        self.drop()
        stop = Stop()
        self._begun = _Begun(question, stop, self._pool.submit(run, stop))

    def take(self, question: Question) -> Ended | None:
        """How the trial ended that answers this; None where it was not begun.

        Raises:
            KeyboardInterrupt: A stop was set.
        """
        begun = self._begun
        if begun is None or begun.question != question:
            return None
        self._begun = None
        return begun.future.result()

    def drop(self) -> None:
        """End the trial that was begun, if there is one."""
        if self._begun is not None:
            self._begun.stop.set()
            self._begun.future.exception()
            self._begun = None

    def close(self) -> None:
        """End the thread."""
        self.drop()
        self._pool.shutdown()
