"""Ways to run programs by themselves and in forks of a real fork server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomdoctor.run.environment import AGENT_DIRECTORY

_SERVER = AGENT_DIRECTORY.parent / "forking/server.py"
_DESCRIBE = """
import json, sys
{code}
import importlib.util
spec = importlib.util.spec_from_file_location("oomdoctor_agent", {agent!r} + "/__init__.py")
sys.modules["oomdoctor_agent"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["oomdoctor_agent"])
from oomdoctor_agent.forking import admission
print(json.dumps(admission.describe_process()))
"""
_SECONDS = 120


def plain_environment(base: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """What a program has that is started without a fork server, with the agent's folder there but idle."""
    return {**base, "PYTHONPATH": str(AGENT_DIRECTORY), "PYTHONDONTWRITEBYTECODE": "1", **more}


def describe(code: str, environment: Mapping[str, str], *, python: str = sys.executable) -> dict[str, Any]:
    """What a process says of itself that has run `code`."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first_trial.py"
        script.write_text(_DESCRIBE.format(code=code, agent=str(AGENT_DIRECTORY.parent)))
        ended = subprocess.run([python, script], env=environment, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@dataclass
class ForkServer:
    """A fork server that runs.

    Attributes:
        answer: What it said when it was ready, or could not be.
        environment: For programs that run by themselves.
        python: The interpreter of both.
        process: The server's.
        socket: Where it listens.
        errors: What it says about processes that it refuses, after what libraries say when they are imported.
        mark: What tells its forks and all that they start.
    """

    answer: dict[str, Any]
    environment: dict[str, str]
    python: str
    process: subprocess.Popen[str]
    socket: Path
    errors: Path
    mark: str

    @property
    def forked(self) -> dict[str, str]:
        """The environment for programs that shall be forked."""
        return self.environment | {"OOMDOCTOR_FORK_SOCKET": str(self.socket), "OOMDOCTOR_TRIAL_SOCKET": "/nowhere"}

    def run(self, arguments: Sequence[object], *, fork: bool, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a Python with these arguments."""
        environment = (self.forked if fork else self.environment) | options.pop("more", {})
        command = [str(argument) for argument in arguments]
        return subprocess.run(  # noqa: PLW1510 - among the options
            command if options.pop("bare", False) else [self.python, *command],
            **{
                "env": environment,
                "capture_output": True,
                "text": True,
                "timeout": _SECONDS,
                "check": False,
                "stdin": subprocess.DEVNULL,
                **options,
            },
        )

    def refusals(self) -> list[str]:
        """Why it has refused processes so far."""
        lines = self.errors.read_text().splitlines()
        return [line for line in lines if line.startswith("refused ")]

    def wait_until_idle(self) -> bool:
        """Ask the server, as the probe does, whether a program of its is left; True when none is."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(self.socket))
            connection.sendall(bytes(8))
            return connection.recv(16) == b"idle\n"


@contextlib.contextmanager
def fork_server(
    description: Mapping[str, Any], environment: Mapping[str, str], *, cwd: Path | None = None, mark: str = ""
) -> Iterator[ForkServer]:
    """Start a server, wait for its answer, and end it; forks of it have its mark, whatever their own environment."""
    with tempfile.TemporaryDirectory() as folder:
        socket_path, description_path = Path(folder) / "socket", Path(folder) / "description.json"
        description_path.write_text(json.dumps(description))
        command = [description["executable"], *description["options"], _SERVER, socket_path, description_path]
        errors = Path(folder) / "errors"
        with (
            errors.open("w") as said,
            subprocess.Popen(
                command,
                env=description["environment_at_torch"] | {"OOMDOCTOR_TEST_MARK": mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            ) as process,
        ):
            try:
                answer = json.loads(_line(process))
                yield ForkServer(
                    answer, dict(environment), description["executable"], process, socket_path, errors, mark
                )
            finally:
                process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert select.select([process.stdout], [], [], _SECONDS)[0], "the server says nothing"
    assert process.stdout is not None
    return process.stdout.readline()


def wait_for(condition: Any, seconds: float = 20) -> bool:
    """Whether `condition()` becomes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def without_numbers(text: str) -> str:
    """Text without addresses and process ids, which differ from one run to the next."""
    return re.sub(r"0x[0-9a-f]+|pid \d+", "N", text)
