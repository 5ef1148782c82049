"""The server's loop: it takes processes over, one after the other, and knows when none of them is left."""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import Any, NamedTuple

from . import admission, descendants, keeper, wire

_DESCRIPTORS = 3
_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_BACKLOG = 64


class Program(NamedTuple):
    """A process to become.

    Attributes:
        process: As `identity.identify` describes it.
        descriptors: Of its streams.
    """

    process: dict[str, Any]
    descriptors: list[int]


class Loop:
    """Listens on a socket in the file system, until that is taken away."""

    def __init__(self, path: str, server: admission.Server) -> None:
        self._path = path
        self._pid = os.getpid()
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)
        self._waking = descendants.wake_at_an_end()
        self._keepers: set[int] = set()
        self._waiting: list[socket.socket] = []

    def run(self) -> Program | None:
        """Serve. This returns a program in the process that shall become it, and None in the server at its end."""
        while os.path.exists(self._path):  # noqa: PTH110 - a text
            watched: list[Any] = [self._listener, self._waking]
            readable, _, _ = select.select(watched, [], [], _LOOK_SECONDS)
            if self._waking in readable:
                os.read(self._waking, 1 << 12)
            self._keepers -= descendants.reap().keys()
            self._tell_waiting()
            program = self._accept() if self._listener in readable else None
            if program is not None:
                return program
        descendants.kill_descendants()
        return None

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_SECONDS)
        descriptors: list[int] = []
        try:
            process, descriptors = wire.receive_with_descriptors(connection, _DESCRIPTORS)
            if process == {}:
                self._waiting.append(connection.dup())
                self._tell_waiting()
            elif process is not None:
                return self._answer(connection, process, descriptors)
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            pass  # it sees the connection close, and runs by itself
        finally:
            connection.close()
            if os.getpid() == self._pid:
                _close(descriptors)
        return None

    def _answer(self, connection: socket.socket, process: dict[str, Any], descriptors: list[int]) -> Program | None:
        reason = admission.refusal(process, self._server)
        if reason or len(descriptors) != _DESCRIPTORS:
            print(f"refused `{' '.join(process['argv'])}`: {reason}", file=sys.stderr, flush=True)  # noqa: T201
            wire.send(connection, {"refused": reason})
            return None
        pid = os.fork()
        if pid:
            self._keepers.add(pid)
            return None
        self._close()
        keeper.keep(connection, descriptors)
        return Program(process, descriptors)

    def _tell_waiting(self) -> None:
        if self._keepers:
            return
        while self._waiting:
            with self._waiting.pop() as connection:
                try:
                    connection.sendall(b"idle\n")
                except OSError:
                    continue

    def _close(self) -> None:
        self._listener.close()
        os.close(self._waking)
        for connection in self._waiting:
            connection.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
