"""Installed torch, NVIDIA wheels and C compiler, found without importing torch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess  # the compiler
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASSIGNMENT = re.compile(
    r"^(?P<name>__version__|cuda)\s*(?::[^=]+)?=\s*(?P<value>None|'[^']*'|\"[^\"]*\")", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """An installed torch.

    Attributes:
        version: As `torch.__version__`, for example `2.15.0+cu132`.
        cuda: CUDA version it was built for, for example `13.2`; None for a CPU or ROCm build.
        root: The package's directory.
    """

    version: str
    cuda: str | None
    root: Path

    @property
    def library_directory(self) -> Path:
        """Directory of `libtorch_cuda.so`."""
        return self.root / "lib"

    @property
    def cuda_major(self) -> int | None:
        """Major version of CUDA, 12 or 13 in the builds that are served; None without CUDA."""
        return None if self.cuda is None else int(self.cuda.split(".")[0])


@cache
def find_torch() -> TorchBuild | None:
    """Return the torch that this interpreter would import; None where there is none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


def parse_version_file(text: str, root: Path) -> TorchBuild:
    """Parse torch's generated `version.py`, given as text."""
    found = {match["name"]: match["value"] for match in _ASSIGNMENT.finditer(text)}
    cuda = found.get("cuda", "None")
    return TorchBuild(
        version=found.get("__version__", "'unknown'").strip("'\""),
        cuda=None if cuda == "None" else cuda.strip("'\""),
        root=root,
    )


def wheel_version(build: TorchBuild, library: str) -> tuple[int, int, int] | None:
    """Return the version of NVIDIA's wheel of a library, such as `cudnn`; None where it was not installed from one."""
    pattern = re.compile(rf"nvidia_{library}(?:_cu\d+)?-(\d+)\.(\d+)\.(\d+)")
    for path in sorted(build.root.parent.glob(f"nvidia_{library}*.dist-info")):
        found = pattern.match(path.name)
        if found is not None:
            return int(found[1]), int(found[2]), int(found[3])
    return None


_COMPILERS = ("cc", "gcc", "clang")
_DETAIL_LINES = 15


def cache_directory(base: Mapping[str, str]) -> Path:
    """Return oomdoctor's directory for what can be made again, by `XDG_CACHE_HOME`."""
    configured = base.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    caches = Path(configured) if configured.startswith("/") else Path(base.get("HOME") or Path.home()) / ".cache"
    return caches / "oomdoctor"


def find_compiler(base: Mapping[str, str]) -> list[str]:
    """Return the words of the compiler's command: `CC`, or the first that is installed.

    Raises:
        NoAnswerError: There is none.
    """
    path = base.get("PATH")
    candidates = [shlex.split(base["CC"])] if base.get("CC") else [[name] for name in _COMPILERS]
    for command in candidates:
        program = shutil.which(command[0], path=path)
        if program is not None:
            return [program, *command[1:]]
    wanted = f"`{base['CC']}` from `CC`" if base.get("CC") else ", ".join(f"`{name}`" for name in _COMPILERS)
    raise NoAnswerError(
        f"the null GPU needs a C compiler, and {wanted} cannot be found",
        hint="install gcc, e.g. `apt install gcc`, or set `CC`",
    )


def compile_all(commands: Sequence[list[str]]) -> None:
    """Run compiler commands side by side, since most of a compiler's time goes into starting it.

    Raises:
        NoAnswerError: One failed; its output is in the details.
    """
    running = [_start(command) for command in commands]
    outputs = [process.communicate()[0] for process in running]
    for command, process, output in zip(commands, running, outputs, strict=True):
        if process.returncode:
            last = "\n".join(output.strip().splitlines()[-_DETAIL_LINES:])
            raise NoAnswerError(
                f"`{command[0]}` could not compile the null GPU",
                hint="set `CC` to another C compiler, such as gcc",
                details=f"{shlex.join(command)}\n{last}",
            )


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )
