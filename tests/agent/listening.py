"""The probe's side of a trial, for tests: it listens to what the agent in a program says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run_python import run_program
from running import python_path

from oomdoctor.run.environment import AGENT_DIRECTORY


class Listener:
    """Collects messages.

    Attributes:
        path: Of the socket.
        messages: All of them, in the order in which they came.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def named(self, event: str, pid: int | None = None) -> list[dict[str, Any]]:
        """The messages of one kind, of one process where it is given."""
        return [one for one in self.messages if one["event"] == event and pid in (None, one["pid"])]

    def close(self) -> None:
        """Stop, once every connection has ended."""
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=20)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile() as lines:
            self.messages.extend(json.loads(line) for line in lines)


@contextmanager
def listening() -> Iterator[Listener]:
    """Listen inside; a socket's path has to be short."""
    with tempfile.TemporaryDirectory(prefix="od-") as folder:
        listener = Listener(Path(folder) / "s")
        try:
            yield listener
        finally:
            listener.close()


def trial_environment(path: Path | str, base: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """What a trial adds to an environment, and `more`."""
    return {
        **base,
        "PYTHONPATH": python_path(AGENT_DIRECTORY),
        "OOMDOCTOR_TRIAL_SOCKET": str(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def run_trial(
    arguments: list[str], base: Mapping[str, str] = os.environ, *, cwd: Path | None = None, **more: str
) -> tuple[subprocess.CompletedProcess[str], Listener]:
    """Run a program to its end with somebody listening: a file in a fork, code after `-c` in a Python of its own."""
    with listening() as listener:
        environment = trial_environment(listener.path, base, **more)
        if arguments[1] == "-c":
            ended = subprocess.run(
                arguments, env=environment, cwd=cwd, capture_output=True, text=True, timeout=200, check=False
            )
        else:
            ended = run_program(arguments[0], arguments[1:], environment, timeout=200, cwd=cwd)
    return ended, listener
