"""Run a program of the tests in a fork of a Python that has imported torch: a tenth of the time, and the same."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_SERVER = Path(__file__).with_name("torch_server.py")
_OF_ONE_PROGRAM = (
    "OOMDOCTOR_NULL_", "OOMDOCTOR_RUN_", "OOMDOCTOR_TRIAL_", "PYTEST_CURRENT_TEST", "RANK", "WORLD_SIZE",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
)  # fmt: skip
"""Beginnings of the variables that are read by a program and not while torch is imported."""
_MOST_SERVERS = 6

_servers: dict[tuple[str, frozenset[tuple[str, str]]], subprocess.Popen[bytes]] = {}


def run_program(
    python: str, arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of tests as `python -W ignore PROGRAM ...` would; its process has no input.

    The agent starts before the program where the environment asks for it, and finds torch imported.

    Args:
        python: The interpreter.
        arguments: The program's file and its arguments.
        environment: Its whole environment.
        timeout: Seconds that it may take.
        cwd: Where it runs; None for here.

    Raises:
        TimeoutExpired: It took longer.
    """
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        request = {
            "arguments": [str(argument) for argument in arguments],
            "directory": str(cwd or Path.cwd()),
            "variables": dict(environment),
            "stdout": str(out),
            "stderr": str(err),
            "dynamo": str(Path(folder) / "dynamo"),
        }
        server = _server(python, environment)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _end_all()
            raise subprocess.TimeoutExpired(request["arguments"], timeout)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, *(file.read_text(errors="replace") for file in (out, err)))


def _server(python: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    same = {name: value for name, value in environment.items() if not name.startswith(_OF_ONE_PROGRAM)}
    key = (python, frozenset(same.items()))
    if key not in _servers:
        if len(_servers) == _MOST_SERVERS:
            _end(_servers.pop(next(iter(_servers))))
        _servers[key] = subprocess.Popen(
            [python, "-W", "ignore", str(_SERVER)], env=same, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    return _servers[key]


def _end(server: subprocess.Popen[bytes]) -> None:
    with server:
        server.kill()


@atexit.register
def _end_all() -> None:
    while _servers:
        _end(_servers.popitem()[1])
