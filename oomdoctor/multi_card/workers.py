"""Workers for many probes: each forked from a server that has imported torch, or a fresh interpreter.

A forked worker begins in a tenth of the time of a fresh one, and is what a fresh one is: its server has touched no
CUDA, and each worker is told of its card by itself. A worker for a real GPU is a fresh interpreter, and so is every
worker whose server cannot serve.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from oomdoctor.trial.process import GuardedProcess, OutputTail
from oomdoctor.trial.worker_process import start_interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.worker_process import WorkerHandle

READY: Final = b"+"
"""Word of a server once it can fork, and again for each worker."""
_OF_ONE_WORKER: Final = ("OOMDOCTOR_NULL_", "OOMDOCTOR_EMULATED_CARD", "OOMDOCTOR_LONE_")
"""Beginnings of the variables that tell a worker its card or its rank."""
_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""The allocator's settings, which PyTorch reads at its first allocation; but its backend, as it is imported."""
_END_SECONDS: Final = 15.0


class WorkerPool:
    """Starts the workers of many probes; use it as a context manager, which ends all that is left of them.

    It has a server for each environment that workers ask for, apart from what tells their card and sets the allocator.

    Args:
        stop: Ends a wait for a server from another thread.
    """

    def __init__(self, stop: CancelToken) -> None:
        self._stop = stop
        self._servers: dict[frozenset[tuple[str, str]], _Server] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    def start(self, environment: Mapping[str, str], requests_fd: int, answers_fd: int) -> WorkerHandle:
        """Start a worker; a `oomdoctor.trial.client.WorkerStarter`.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        own = {name: value for name, value in environment.items() if _is_own(name, value)}
        has_no_gpu = any(name.startswith(_OF_ONE_WORKER) for name in own)
        if has_no_gpu and (forked := self._server(environment).fork(own, requests_fd, answers_fd)) is not None:
            return forked
        return start_interpreter(environment, requests_fd, answers_fd)

    def _server(self, environment: Mapping[str, str]) -> _Server:
        shared = {name: value for name, value in environment.items() if not _is_own(name, value)}
        key = frozenset(shared.items())
        with self._lock:
            if key not in self._servers:
                self._servers[key] = _Server(shared, self._stop)
            return self._servers[key]


def _is_own(name: str, value: str) -> bool:
    """Return whether a worker may have another value of a variable than its server."""
    return name.startswith(_OF_ONE_WORKER) or (name == _ALLOCATOR and "backend" not in value)


class _Server:
    """A server under a guardian, which ends with it.

    Args:
        environment: Its whole environment.
        stop: Ends a wait for it from another thread.
    """

    def __init__(self, environment: Mapping[str, str], stop: CancelToken) -> None:
        self._stop = stop
        self._lock = Lock()
        self._is_ready = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unread, report = os.pipe()
        command = [sys.executable, "-P", "-m", "oomdoctor.multi_card.worker_server", str(theirs.fileno())]
        self._process = GuardedProcess(command, environment, report, pass_fds=(theirs.fileno(),))
        theirs.close()
        for descriptor in (unread, report):
            os.close(descriptor)

    def fork(self, variables: Mapping[str, str], requests_fd: int, answers_fd: int) -> ForkedWorker | None:
        """Have a worker forked; None where the server cannot serve.

        Args:
            variables: What the worker's environment has beyond the server's.
            requests_fd: Descriptor of its requests.
            answers_fd: Descriptor of its answers.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        with self._lock:
            self._is_ready = self._is_ready or self._answers()
            if not self._is_ready:
                return None
            self._is_ready = False
            worker = ForkedWorker()
            try:
                with suppress(OSError):  # where it ended, its answer will not come
                    message = {"directory": str(Path.cwd()), "variables": dict(variables)}
                    socket.send_fds(
                        self._socket, [json.dumps(message).encode()], worker.descriptors(requests_fd, answers_fd)
                    )
                self._is_ready = self._answers()
            finally:
                worker.release()
                if not self._is_ready:
                    worker.close()
        return worker if self._is_ready else None

    def close(self) -> None:
        """End it and all that it forked."""
        self._socket.close()
        self._process.close()

    def _answers(self) -> bool:
        """Wait for its word; False where it ended."""
        select.select([self._socket.fileno(), self._stop.fd], [], [])
        if self._stop.is_set:
            raise KeyboardInterrupt
        try:
            return self._socket.recv(len(READY)) == READY
        except OSError:
            return False


class ForkedWorker:
    """A worker under a guardian, both forked from a server, in a session of its own."""

    def __init__(self) -> None:
        self._output = OutputTail()
        self._lifeline_read, self._lifeline = os.pipe()
        self._alive, self._alive_write = os.pipe()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """True until it is ended."""
        return self._is_open

    def descriptors(self, requests_fd: int, answers_fd: int) -> list[int]:
        """Return what its guardian and it are made with; see `oomdoctor.multi_card.worker_server`."""
        return [self._lifeline_read, answers_fd, requests_fd, answers_fd, self._output.write_fd, self._alive_write]

    def release(self) -> None:
        """Close what only its guardian and it shall hold."""
        for descriptor in (self._lifeline_read, self._output.write_fd, self._alive_write):
            os.close(descriptor)

    def close(self) -> None:
        """End it and everything that it started; returns when nothing of it is left."""
        if self._is_open:
            self._is_open = False
            os.close(self._lifeline)
            select.select([self._alive], [], [], _END_SECONDS)  # the guardian ends last, and alone holds the other end
            os.close(self._alive)
            self._output.close()

    def tail(self) -> str | None:
        """Return the end of its output, with a heading; None where it printed nothing. Call after it has ended."""
        self._output.close()
        return self._output.tail()
