"""Which Python a command will run, found without running the command: it may have another torch than ours."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.devices.torch_build import TorchBuild, find_torch, parse_version_file
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_LONGEST_HEAD = 512
_SECONDS = 60
_WHERE_IS_TORCH = "import importlib.util as u; s = u.find_spec('torch'); print(s and s.origin or '')"


def find_interpreter(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Find the Python that `command` starts; None where nothing in it tells.

    A Python by name, a script by its first line (`torchrun` and `accelerate` are such), `uv run` by what uv says, and
    behind a launcher such as `mpirun -n 4` or `env` the first word that is one of these.
    """
    path = environment.get("PATH")
    for index, word in enumerate(command):
        program = shutil.which(word, path=path)
        if program is None:
            continue
        if Path(word).name == "uv" and "run" in command[index + 1 :]:
            return _ask_uv(program, command[index + 1 :], environment)
        found = _python_of(program, path)
        if found is not None:
            return found
    return None


def torch_of(interpreter: str | None, environment: Mapping[str, str]) -> TorchBuild:
    """The torch that an interpreter would import; this process's own where `interpreter` is None.

    Raises:
        NoAnswerError: It has none, or does not run.
    """
    if interpreter is None or Path(interpreter) == Path(sys.executable):
        build = find_torch()
        if build is None:
            raise _no_torch(sys.executable)
        return build
    origin = _output([interpreter, "-c", _WHERE_IS_TORCH], environment)
    if not origin:
        raise _no_torch(interpreter)
    root = Path(origin).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


def _no_torch(interpreter: str) -> NoAnswerError:
    return NoAnswerError(
        f"`{interpreter}`, which the command runs, has no PyTorch",
        hint="activate the environment that the command needs, or name its Python",
    )


def _python_of(program: str, path: str | None) -> str | None:
    """The Python that a program is, or that its first line names."""
    if _PYTHON.fullmatch(Path(program).name):
        return program
    try:
        with Path(program).open("rb") as file:
            head = file.read(_LONGEST_HEAD).decode(errors="replace")
    except OSError:
        return None
    return _shebang(head, path) if head.startswith("#!") else None


def _shebang(head: str, path: str | None) -> str | None:
    lines = head.splitlines()
    words = lines[0][2:].split()
    # `#!/bin/sh` and then `'''exec' "/long/path/python" "$0" "$@"`: what installers write for paths that a first
    # line cannot hold.
    if len(lines) > 1 and lines[1].startswith("'''exec' "):
        words = _split(lines[1].removeprefix("'''exec' "))
    for word in words:
        if _PYTHON.fullmatch(Path(word).name):
            return shutil.which(word, path=path)
    return None


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _ask_uv(uv: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What `uv run` will take: the Python that it is told, or the project's."""
    for flag in ("--python", "-p"):
        if flag in arguments[:-1]:
            return _output([uv, "python", "find", arguments[list(arguments).index(flag) + 1]], environment) or None
    return _output([uv, "python", "find"], environment) or None


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The last line of what a command prints; empty where it fails."""
    try:
        ended = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
            check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = ended.stdout.strip().splitlines() if ended.returncode == os.EX_OK else []
    return lines[-1] if lines else ""
