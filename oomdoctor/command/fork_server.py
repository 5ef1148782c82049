"""The parent's side of the fork server: a process that has imported torch, which later trials are forked from."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.codec import encode
from oomdoctor.command.trial import SocketDirectory
from oomdoctor.run.environment import AGENT_DIRECTORY
from oomdoctor.trial.process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.agent.messages import ProcessDescription
    from oomdoctor.trial.process import CancelToken


_SERVER: Final = AGENT_DIRECTORY.parent / "forking" / "server.py"
_CHUNK: Final = 65536
_ASKS_FOR_IDLE: Final = bytes(8)
_IDLE_SECONDS: Final = 10.0


class ForkServer:
    """A fork server under a guardian.

    Args:
        description: Description of the process that trained in the first trial (`oomdoctor.agent.forking.admission`).
        directory: A directory of ours.

    Attributes:
        path: Its socket.
        reason: Why it cannot serve; None where it does.
    """

    def __init__(self, description: ProcessDescription, directory: Path) -> None:
        self.path = directory / "forks"
        described = directory / "description.json"
        described.write_text(json.dumps(encode(description)), encoding="utf-8")
        self._ready_read, ready_write = os.pipe()
        report_read, report_write = os.pipe()
        self._process = GuardedProcess(
            [description.executable, *description.options, str(_SERVER), str(self.path), str(described)],
            description.environment_at_torch,
            report_write,
            stdout_fd=ready_write,
            directory=Path(description.cwd),
        )
        for fd in (report_read, report_write, ready_write):
            os.close(fd)
        self.reason: str | None = None

    def wait(self, timeout_seconds: float, stops: Sequence[CancelToken]) -> bool:
        """Wait until it can serve; False where it says that it cannot, or says nothing.

        Raises:
            KeyboardInterrupt: A stop was set.
        """
        text, deadline = b"", time.monotonic() + timeout_seconds
        while not text.endswith(b"\n"):
            fds = [self._ready_read, *(stop.fd for stop in stops)]
            readable, _, _ = select.select(fds, [], [], max(0.0, deadline - time.monotonic()))
            if any(stop.is_set for stop in stops):
                raise KeyboardInterrupt
            chunk = os.read(self._ready_read, _CHUNK) if readable else b""
            if not chunk:
                break
            text += chunk
        answer: Any = None
        with suppress(ValueError):
            answer = json.loads(text)
        if not isinstance(answer, dict):
            answer = {}
        self.reason = None if answer.get("ready") else str(answer.get("reason", "it did not start"))
        return self.reason is None

    def wait_until_idle(self) -> None:
        """Wait until nothing is left of the programs that it forked, for a while at most."""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_IDLE_SECONDS)
            connection.connect(str(self.path))
            connection.sendall(_ASKS_FOR_IDLE)
            connection.recv(_CHUNK)

    def close(self) -> None:
        """End it and all that it forked."""
        if self._process.is_open:
            self._process.close()
            os.close(self._ready_read)


@dataclass(slots=True)
class KeptForkServer:
    """A fork server that the first of several probes of one command starts, and the others use.

    Close it once no probe runs any more.

    Attributes:
        environment: The environment of the command's trials for which it was started, without variables of ours.
        server: The server; None where there is none, so that each probe has its own.
        environment_at_torch: The environment that torch was imported with.
        has_port: Whether two programs at once would want the same port.
        reason: Proof that its forks take the memory of a process of their own.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    server: ForkServer | None = None
    environment_at_torch: Mapping[str, str] = field(default_factory=dict)
    has_port: bool = False
    reason: str | None = None
    _sockets: SocketDirectory | None = None

    @property
    def directory(self) -> Path:
        """Directory for its socket, which lasts as long as this."""
        if self._sockets is None:
            self._sockets = SocketDirectory()
        return self._sockets.path

    def close(self) -> None:
        """End the server and all that it forked."""
        if self.server is not None:
            self.server.close()
        if self._sockets is not None:
            self._sockets.close()
