"""Channel to the parent: messages are sent at once, and a parent that is gone disturbs nobody.

Loaded into every Python of the command, so it imports only what Python has at hand, and the rest when it is needed.
"""

# ruff: noqa: ANN401, PLC0415 - what is not needed yet is not imported yet

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .messages import Message

PROTOCOL = 1
"""Version of `messages`; the parent takes a message of another one for none."""

_LONGEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.0005
_HIGH_DESCRIPTOR = 200  # out of the way of programs that expect theirs to be counted from 3


class Channel:
    """One process's connection, made when there is something to send.

    Args:
        path: The parent's listening socket.

    Attributes:
        is_quiet: Whether this is a forked process that has done nothing of interest yet: then only its file writes are
            sent.
        first_message: Sends what a process says first, once it does something of interest.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.first_message: Callable[[], Any] | None = None
        self.is_quiet = False
        self._reset()

    def _reset(self) -> None:
        import _thread

        self._socket: Any = None
        self._identity: Any = None
        self._is_given_up = False
        self._waiting: list[bytes] = []
        self._lock = _thread.allocate_lock()

    def after_fork(self) -> None:
        """Let go of the connection of the process that was forked; this one makes its own."""
        if self._socket is not None and self._is_ours():
            self._socket.close()
        elif self._socket is not None:
            self._socket.detach()
        self._reset()
        self.is_quiet = True

    def speak(self) -> None:
        """Be quiet no longer, where this was a forked process."""
        if self.is_quiet:
            self.is_quiet = False
            if self.first_message is not None:
                self.first_message()

    def send(self, message: Message) -> None:
        """Send a message; it is lost where nobody listens."""
        from dataclasses import asdict

        self.send_event(message.event, asdict(message))

    def send_event(self, event: str, fields: dict[str, Any], *, even_if_quiet: bool = False) -> None:
        """Send a message by its event and its fields.

        Messages never mix, whatever thread or signal handler sends them: who finds another at it leaves his with it.
        """
        if self._is_given_up or (self.is_quiet and not even_if_quiet):
            return
        import json

        line = {"protocol": PROTOCOL, "event": event, "pid": os.getpid(), **fields}
        self._waiting.append(json.dumps(line, default=str).encode() + b"\n")
        self._send_waiting()

    def flush(self) -> None:
        """Wait until everything is sent, which another thread may be at."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while (self._waiting or self._lock.locked()) and not self._is_given_up and time.monotonic() < deadline:
            self._send_waiting()
            time.sleep(_PAUSE_SECONDS)

    def stand_still(self) -> None:
        """Stop with all threads until the parent kills the command; without a parent the program goes on."""
        import signal

        self.flush()
        if not self._is_given_up:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send_waiting(self) -> None:
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                while self._waiting and not self._is_given_up:
                    self._write(self._waiting.pop(0))
            finally:
                self._lock.release()

    def _write(self, line: bytes) -> None:
        import _socket

        try:
            if self._socket is None:
                self._connect()
            if not self._is_ours():  # the program has closed it, and the number may be another file's by now
                self._socket.detach()
                self._connect()
            self._socket.sendall(line, _socket.MSG_NOSIGNAL)
        except OSError:
            self._is_given_up = True

    def _connect(self) -> None:
        import _socket

        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(_LONGEST_SECONDS)
        connection.connect(self._path)
        self._socket = _moved_up(connection)
        status = os.fstat(self._socket.fileno())
        self._identity = (status.st_dev, status.st_ino)

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._socket.fileno())
        except OSError:
            return False
        return bool((status.st_dev, status.st_ino) == self._identity)


def _moved_up(connection: Any) -> Any:
    """Return the connection under a high number."""
    import _socket
    import fcntl

    try:
        number = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except OSError:
        return connection
    connection.close()
    moved = _socket.socket(fileno=number)
    moved.settimeout(_LONGEST_SECONDS)
    return moved
