"""The C compiler of this machine, and the directory for what is compiled and kept."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess  # the compiler
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMPILERS = ("cc", "gcc", "clang")
_DETAIL_LINES = 15


def cache_directory(base: Mapping[str, str]) -> Path:
    """Return oomdoctor's directory for what can be made again, by `XDG_CACHE_HOME`."""
    configured = base.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    cache = Path(configured) if configured.startswith("/") else Path(base.get("HOME") or Path.home()) / ".cache"
    return cache / "oomdoctor"


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
