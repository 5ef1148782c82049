"""What a command used in all of its trials: what each of its Pythons told, and what native code opened.

An answer may be used again where all of that is as it was. What cannot be known is said, and then it may not:

- a program that is not this Python with the hook, whether the command itself or something that it starts;
- a file that was changed while the command ran, or that one process saw otherwise than another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.probing.command.witness import ACCOUNT, OPENED
from oomdoctor.probing.dependencies import Dependencies
from oomdoctor.probing.dependency_paths import can_change, is_installed, source
from oomdoctor.probing.looking import Look, look

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_CONTENT_BYTES: Final = 64 * 1024**2
_PYTHON: Final = re.compile(r"python[\d.]*")
_LONGEST_HEAD: Final = 512
_DEEPEST: Final = 4
_GRAIN_SECONDS: Final = 0.02
"""By how much a file's times may lie behind the clock."""


class Uses:
    """The account of one probe.

    Args:
        room: A directory of ours that lasts for as long as the trials do.

    Attributes:
        environment: What a trial has to have in its environment so that it is watched.
    """

    def __init__(self, room: Path) -> None:
        self._room = room
        self._account = room / "uses"
        self._opened = room / f"uses{OPENED}"
        self._account.write_text(json.dumps({"prefix": sys.prefix, "version": sys.version}) + "\n")
        self._opened.touch()
        self._began = time.time() - _GRAIN_SECONDS
        self.environment = {ACCOUNT: str(self._account)}

    def dependencies(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Dependencies:
        """All that was used so far.

        Args:
            command: Its words.
            directory: Where it runs.
            environment: What it is started from.
        """
        gathered = _Gathered(str(self._room), self._began)
        if (problem := unseen_start(command, directory, environment)) is not None:
            gathered.unseen[problem] = None
        for line in self._account.read_bytes().splitlines()[1:]:
            gathered.take(line)
        for path in dict.fromkeys(self._opened.read_bytes().split(b"\0")[:-1]):
            gathered.take_native(os.fsdecode(path))
        gathered.leave_temporary()
        return gathered.dependencies()


class _Gathered:
    """What was used, as it comes together.

    Args:
        room: Our own directory, whose files count for nothing.
        began: When the first trial began, in seconds since the epoch.

    Attributes:
        unseen: Why something may have been used that nobody saw, in order.
    """

    def __init__(self, room: str, began: float) -> None:
        self._room = room
        self._began = began
        self._seen: dict[str, str] = {}
        self._variables: set[str] = set()
        self._own: dict[str, bool] = {}
        self._temporary: set[str] = set()
        self._pythons = 0
        self._left_bytes = _MOST_CONTENT_BYTES
        self.unseen: dict[str, None] = {}

    def take(self, line: bytes) -> None:
        """Take in one line of a Python."""
        try:
            told = json.loads(line)
            self._take_told(told)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.unseen["a process was ended while it said what it used"] = None

    def _take_told(self, told: dict[str, Any]) -> None:
        if "python" in told:
            self._pythons += 1
        elif "escaped" in told:
            self.unseen[str(told["escaped"])] = None
        elif "own" in told:
            self._own.setdefault(str(told["own"]), bool(told["is_new"]))
            if told["is_temporary"]:
                self._temporary.add(str(told["own"]))
        else:
            self._variables.update(map(str, told["variables"]))
            self.unseen.update(dict.fromkeys(map(str, told["unseen"])))
            for key, state in told["seen"].items():
                self._take_seen(str(key), str(state))

    def _take_seen(self, key: str, state: str) -> None:
        if self._seen.setdefault(key, state) != state:
            self.unseen[f"`{key.partition(' ')[2]}` changed while the command ran"] = None

    def take_native(self, path: str) -> None:
        """Take in a file that any code opened to read; those that Python opened are known already."""
        path = source(os.path.normpath(path))
        if path.startswith(f"{self._room}/") or is_installed(path) or not can_change(path) or self._is_seen(path):
            return
        maker = next((one for one in (path, *map(str, Path(path).parents)) if one in self._own), None)
        if maker is not None and self._own[maker]:
            return
        if maker is not None or _is_changed_since(path, self._began):
            self.unseen[f"`{path}` changed while the command ran"] = None
        self._take_seen(*self._looked_at(path))

    def _is_seen(self, path: str) -> bool:
        return f"{Look.CONTENT} {path}" in self._seen or f"{Look.SIGNATURE} {path}" in self._seen

    def _looked_at(self, path: str) -> tuple[str, str]:
        """A file that may be too long to be read, and how it is now."""
        size = _size(path)
        way = Look.CONTENT if size <= self._left_bytes else Look.SIGNATURE
        self._left_bytes -= size if way is Look.CONTENT else 0
        return f"{way} {path}", look(way, path)

    def leave_temporary(self) -> None:
        """Forget what `tempfile` made: the name is another in each run, one process makes it and others look at it."""
        for key in list(self._seen):
            path = key.partition(" ")[2]
            if not self._temporary.isdisjoint([path, *map(str, Path(path).parents)]):
                del self._seen[key]

    def dependencies(self) -> Dependencies:
        """All of it. The working directory is the command's, which the question has."""
        if not self._pythons:
            self.unseen["no Python of the command said what it used"] = None
        return Dependencies(self._seen, tuple(sorted(self._variables)), None, tuple(self.unseen))


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
    """Whether it is a Python, or a script whose first line names one; a shell script that is called so is none."""
    try:
        with Path(program).open("rb") as file:
            head = file.read(_LONGEST_HEAD).decode(errors="replace")
    except OSError:
        return False
    if not head.startswith("#!"):
        return bool(_PYTHON.fullmatch(Path(program).name))
    inner = next(filter(None, map(_which_python(search_path), _interpreter_words(head))), None)
    return inner is not None and depth > 0 and _is_python(inner, search_path, depth - 1)


def _which_python(search_path: str | None) -> Any:  # noqa: ANN401 - a function
    def which(word: str) -> str | None:
        return shutil.which(word, path=search_path) if _PYTHON.fullmatch(Path(word).name) else None

    return which


def _interpreter_words(head: str) -> Iterator[str]:
    first, _, rest = head.partition("\n")
    yield from first[2:].split()
    # What installers write where the path is too long for a first line.
    if rest.startswith("'''exec' "):
        yield rest.split("\n", 1)[0].split()[1].strip("\"'")


def _is_changed_since(path: str, began: float) -> bool:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return False
    return max(status.st_mtime, status.st_ctime) >= began


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0
