"""One trial of a command: start it, listen until its outcome is known, and end it with all that it started.

It is ended by SIGKILL, from its launcher down to its data loaders: no checkpoint, logger or `atexit` of the script sees
an end that training would not have.
"""

from __future__ import annotations

import json
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.command.listener import Listener
from oomdoctor.probing.guarded import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oomdoctor.probing.command.hearing import Heard
    from oomdoctor.probing.stopping import Stop

_CLOSING_SECONDS: Final = 10.0
"""How long a command may take to end once memory has run out or an error has ended its training."""

_ENDING_SECONDS: Final = 5.0
"""How long those that were killed are waited for."""

_CHUNK: Final = 65536


@dataclass(frozen=True, slots=True)
class Start:
    """What to start.

    Attributes:
        command: The program and its arguments, sizes filled in.
        directory: Where it runs.
        environment: What it runs in, but for where it says how it goes.
        room: A directory of ours for sockets.
        name: Of this trial, in that directory.
        timeout_seconds: Longest time that it may take.
    """

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    room: Path
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """How a trial ended.

    Attributes:
        heard: What its processes said.
        return_code: The command's, negative for a signal; None where it was ended by us.
        timed_out: Whether it was ended because it took too long.
        seconds: How long it took.
        tail: The end of its output.
    """

    heard: Heard
    return_code: int | None
    timed_out: bool
    seconds: float
    tail: str | None


def run_trial(start: Start, heard: Heard, stops: Sequence[Stop] = ()) -> Ended:
    """Run one trial to its end.

    Args:
        start: What to start.
        heard: Takes in what its processes say, until the last of them is gone, however the trial ends.
        stops: Each ends it from another thread.

    Raises:
        KeyboardInterrupt: A stop was set.
    """
    path = start.room / start.name
    with Listener(path) as listener:
        report_read, report_write = os.pipe()
        try:
            started = time.monotonic()
            environment = {**start.environment, "OOMDOCTOR_TRIAL_SOCKET": str(path)}
            process = GuardedProcess(start.command, environment, report_write, directory=start.directory)
            os.close(report_write)
            watch = _Watch(listener, heard, report_read, stops, started + start.timeout_seconds)
            try:
                watch.until_over()
            finally:
                process.close()
                watch.hear_the_rest()
        finally:
            os.close(report_read)
        seconds = time.monotonic() - started
    return Ended(heard, watch.return_code, watch.timed_out, seconds, process.tail())


class _Watch:
    """Waits for the outcome of one trial.

    Args:
        listener: Where its processes speak.
        heard: Takes in what they say.
        report_fd: Where the guardian says that the command has ended.
        stops: Each ends the wait.
        deadline: When to give up, on the monotonic clock.

    Attributes:
        return_code: The command's, once it has ended by itself.
        timed_out: Whether the deadline has passed.
    """

    def __init__(
        self, listener: Listener, heard: Heard, report_fd: int, stops: Sequence[Stop], deadline: float
    ) -> None:
        self._listener = listener
        self._report_fd = report_fd
        self._stops = stops
        self._deadline = deadline
        self._closing: float | None = None
        self._heard = heard
        self.return_code: int | None = None
        self.timed_out = False

    def until_over(self) -> None:
        """Return once the outcome is known, or nothing more will come."""
        while not self._is_over():
            self._wait()
            self.hear()

    def hear(self) -> None:
        """Take in what has been said."""
        for message in self._listener.take():
            self._heard.add(message)

    def hear_the_rest(self) -> None:
        """Take in what is said by programs that were forked from a server, which end a moment after their command."""
        for message in self._listener.take_the_rest(_ENDING_SECONDS):
            self._heard.add(message)

    def _is_over(self) -> bool:
        heard, now = self._heard, time.monotonic()
        if heard.has_all_steps or heard.has_survived or heard.has_died_of_oom or self.return_code is not None:
            return True
        if self._closing is None and (heard.ooms or heard.has_failed):
            # It is let go on for a while: whether it survives, and what it prints, are part of the answer.
            self._closing = now + _CLOSING_SECONDS
        self.timed_out = now >= self._deadline and self._closing is None
        return self.timed_out or (self._closing is not None and now >= self._closing)

    def _wait(self) -> None:
        deadline = self._deadline if self._closing is None else self._closing
        fds = [self._listener.fd, self._report_fd, *(stop.fd for stop in self._stops)]
        readable, _, _ = select.select(fds, [], [], max(0.0, deadline - time.monotonic()))
        if any(stop.is_set for stop in self._stops):
            raise KeyboardInterrupt
        if self._report_fd in readable:
            report = os.read(self._report_fd, _CHUNK).strip()
            # A guardian that was killed says nothing, and then the command was killed with it.
            self.return_code = json.loads(report)["return_code"] if report else -9
