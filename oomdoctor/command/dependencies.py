"""Dependencies of a command's answer: what its processes told, and whether what it is started as can tell at all.

An answer may be used again where all of that is as it was. What cannot be known is said, and then it may not:

- a program that is not this Python with the agent, whether the command itself or something that it starts;
- a file that was changed while the command ran, or that one process saw otherwise than another.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.dependency_recorder import ACCOUNT, OPENED
from oomdoctor.trial.dependencies import GRAIN_SECONDS, Dependencies, gather

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYTHON: Final = re.compile(r"python[\d.]*")
_LONGEST_HEAD: Final = 512
_DEEPEST: Final = 4


class CommandDependencies:
    """The account of one probe's processes.

    Args:
        folder: A folder of ours that lasts for as long as the trials do.

    Attributes:
        environment: What a trial has to have in its environment so that its processes tell.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._account = folder / "uses"
        self._opened = folder / f"uses{OPENED}"
        self._account.write_text(json.dumps({"prefix": sys.prefix, "version": sys.version}) + "\n")
        self._opened.touch()
        self._began = time.time() - GRAIN_SECONDS
        self.environment = {ACCOUNT: str(self._account)}

    def dependencies(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Dependencies:
        """Return all that was used so far; the working directory is the command's, which the question has.

        Args:
            command: Its words.
            directory: Where it runs.
            environment: What it is started from.
        """
        problem = unseen_start(command, directory, environment)
        told = self._account.read_bytes().partition(b"\n")[2]
        used = gather(told, self._opened.read_bytes(), began=self._began, ignored=f"{self._folder}/")
        unseen = used.unseen if problem is None else (problem, *used.unseen)
        return Dependencies(used.seen, used.variables, None, unseen)


def unseen_start(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str | None:
    """Why what the command is started as may read something that nobody sees; None where it is Python from the start.

    Args:
        command: Its words.
        directory: Where it runs.
        environment: Its `PATH` is searched.
    """
    program = found_program(command, directory, environment)
    if program is not None and _is_python(program, environment.get("PATH"), _DEEPEST):
        return None
    return f"the command starts with `{command[0]}`, and nobody sees what that reads"


def found_program(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str | None:
    """Path of what the command is started as; None where there is no such program."""
    name = str(directory / command[0]) if "/" in command[0] else command[0]
    return shutil.which(name, path=environment.get("PATH"))


def _is_python(program: str, search_path: str | None, depth: int) -> bool:
    """Return whether it is a Python, or a script whose first line names one, and no shell script that is called so."""
    try:
        with Path(program).open("rb") as file:
            head = file.read(_LONGEST_HEAD).decode(errors="replace")
    except OSError:
        return False
    if not head.startswith("#!"):
        return bool(_PYTHON.fullmatch(Path(program).name))
    first, _, rest = head.partition("\n")
    words = first[2:].split()
    if rest.startswith("'''exec' "):  # what installers write where the path is too long for a first line
        words.append(rest.split("\n", 1)[0].split()[1].strip("\"'"))
    found = (shutil.which(word, path=search_path) for word in words if _PYTHON.fullmatch(Path(word).name))
    inner = next(filter(None, found), None)
    return inner is not None and depth > 0 and _is_python(inner, search_path, depth - 1)
