"""The messages between the parent and its worker, one JSON object a line, over two pipes that nothing else writes to.

The user's code prints to stdout and stderr; those go elsewhere, so that no print can be taken for an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oomdoctor.results import Outcome, StepMemory  # noqa: TC001 - reading an answer goes by the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.trial.process import CancelToken


Message = dict[str, Any]

_CHUNK = 65536


class ChannelClosedError(Exception):
    """The other side is gone."""


class ChannelTimeoutError(Exception):
    """Nothing came in time."""


class Channel:
    """A pair of pipe ends.

    Args:
        read_fd: Where messages come from.
        write_fd: Where messages go.
        stop: Ends a wait from another thread.
    """

    def __init__(self, read_fd: int, write_fd: int, stop: CancelToken | None = None) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._stop = stop
        self._pending = b""
        self._owner = os.getpid()

    def send(self, message: Mapping[str, object]) -> None:
        """Write one message.

        Raises:
            ChannelClosedError: The other side is gone.
        """
        if os.getpid() != self._owner:
            # The user's code forked and the copy came back to us: only the first process may answer.
            os._exit(0)
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except (BrokenPipeError, OSError) as error:
            raise ChannelClosedError from error

    def receive(self, timeout_seconds: float | None = None) -> Message:
        """Read one message.

        Raises:
            ChannelClosedError: The other side is gone.
            ChannelTimeoutError: Nothing came within `timeout_seconds`.
            KeyboardInterrupt: The stop was set.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            line = self._read_line(deadline)
            with contextlib.suppress(ValueError):  # a worker that dies while it writes leaves half a line
                message: Message = json.loads(line)
                return message

    def close(self) -> None:
        """Close both ends."""
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)

    def _read_line(self, deadline: float | None) -> bytes:
        while b"\n" not in self._pending:
            self._wait(deadline)
            chunk = os.read(self._read_fd, _CHUNK)
            if not chunk:
                raise ChannelClosedError
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _wait(self, deadline: float | None) -> None:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        stop_fds = [] if self._stop is None else [self._stop.fd]
        readable, _, _ = select.select([self._read_fd, *stop_fds], [], [], remaining)
        if self._stop is not None and self._stop.is_set:
            raise KeyboardInterrupt
        if not readable:
            raise ChannelTimeoutError


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """What came of recording memory.

    Attributes:
        memory: What memory was made of; None where that could not be had.
        reason: Why it could not be had, or what it lacks; None where there is nothing to say.
        outcome: How the trial ended.
    """

    memory: StepMemory | None
    reason: str | None
    outcome: Outcome
