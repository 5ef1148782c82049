"""The environment of a command: its interpreter, the agent in it, and the device that it sees."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.engines.catalogue import check_reserve
from oomdoctor.engines.choice import card_of, choose_engine
from oomdoctor.engines.installed import TorchBuild, find_torch, parse_version_file
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.errors import NoAnswerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.engines.catalogue import Card


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
    """Return the Python that `uv run` will take: the given one, or the project's."""
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


AGENT_DIRECTORY = Path(__file__).parents[1] / "agent" / "bootstrap"
"""The folder that comes first in PYTHONPATH."""


@dataclass(frozen=True, slots=True)
class CommandDevice:
    """The GPU that a command shall find; with all None, the machine's own.

    Attributes:
        gpu: Name of a catalogue card, which a null GPU plays.
        index: Index or UUID of a GPU of this machine.
        memory_bytes: Capacity, what PyTorch may take.
        card_bytes: Memory of the card in all, instead of its capacity.
        reserve_bytes: Bytes that others hold.
        options: The options that asked for it, and for ranks, as given, each with its value behind it.
    """

    gpu: str | None = None
    index: str | None = None
    memory_bytes: int | None = None
    card_bytes: int | None = None
    reserve_bytes: int = 0
    options: tuple[str, ...] = ()


def make_environment(
    command: Sequence[str], base: Mapping[str, str], *, device: CommandDevice, directory: Path, max_entries: int
) -> dict[str, str]:
    """Make the environment that a command runs in; only what is asked for differs from `base`.

    Args:
        command: The command, which tells what Python and so what torch will run.
        base: Environment to start from.
        device: The GPU to show it.
        directory: Directory for the reports of the agent, absolute.
        max_entries: Events of the memory history to keep; 0 for no history.

    Raises:
        UsageError: The device's options contradict each other, or the card is unknown.
        NoAnswerError: The null GPU cannot be had here, or the command's Python has no torch.
    """
    environment, is_local = _device_environment(command, base, device)
    check_reserve(device.reserve_bytes, device.memory_bytes)
    environment = with_agent(environment)
    environment["OOMDOCTOR_RUN_DIRECTORY"] = str(directory)
    environment["OOMDOCTOR_RUN_MAX_ENTRIES"] = str(max_entries)
    # A null GPU has no more memory than was asked for.
    environment["OOMDOCTOR_RUN_MEMORY_BYTES"] = str(
        device.memory_bytes - device.reserve_bytes if is_local and device.memory_bytes else 0
    )
    environment["OOMDOCTOR_RUN_CARD_BYTES"] = str((is_local and device.card_bytes) or 0)
    environment["OOMDOCTOR_RUN_RESERVE_BYTES"] = str((is_local and device.reserve_bytes) or 0)
    environment["OOMDOCTOR_RUN_CARD_OPTIONS"] = "\n".join(device.options)
    return environment


def with_agent(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the agent first in the path of every Python that runs in it."""
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{AGENT_DIRECTORY}:{before}" if before else str(AGENT_DIRECTORY)}


def _device_environment(
    command: Sequence[str], base: Mapping[str, str], device: CommandDevice
) -> tuple[dict[str, str], bool]:
    """Return the environment that shows the device, and whether it is a GPU of this machine."""
    if device.gpu is not None and device.index is not None:
        raise UsageError(
            "`--gpu` and `--device` exclude each other",
            hint="`--gpu NAME` plays a card from the catalogue, `--device INDEX` chooses a GPU of this machine",
        )
    if device.index is not None:
        engine = choose_engine(engine="cuda", gpu=None, device=device.index, memory_bytes=None, base=base)
        return engine.environment, True
    asked_bytes = device.memory_bytes or device.card_bytes
    if device.gpu is None and (asked_bytes is None or has_local_gpu()):
        return dict(base), True
    card = card_of(device.gpu, device.memory_bytes, device.card_bytes, base).with_reserve(device.reserve_bytes)
    return _null_environment(command, base, card), False


def _null_environment(command: Sequence[str], base: Mapping[str, str], card: Card) -> dict[str, str]:
    if "cudaMallocAsync" in base.get("PYTORCH_CUDA_ALLOC_CONF", "") + base.get("PYTORCH_ALLOC_CONF", ""):
        raise NoAnswerError(
            "the null GPU runs PyTorch's own allocator, and the environment asks for `backend:cudaMallocAsync`",
            hint="unset it in `PYTORCH_CUDA_ALLOC_CONF`, or run on a machine with a CUDA GPU",
        )
    build = torch_of(find_interpreter(command, base), base)
    return null_gpu_environment(card, build, base)
