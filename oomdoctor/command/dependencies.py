"""Dependencies of a command's answer: what its processes used, recorded inside them and gathered in the parent.

An answer may be used again where all of that is as it was. What cannot be known is said, and then it may not:

- a program that is not this Python with the hook, whether the command itself or something that it starts;
- a file that was changed while the command ran, or that one process saw otherwise than another.

Everything is told when it is seen first: in the end the process is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.trial import dependency_recorder
from oomdoctor.trial.dependencies import ALL_VARIABLES, Dependencies, Fingerprint, fingerprint
from oomdoctor.trial.dependency_recorder import Recorder, can_change, is_installed, is_known, is_standard, source
from oomdoctor.trial.dependency_watch import callers, watch_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


ACCOUNT: Final = "OOMDOCTOR_TRIAL_USES"
"""Variable with the path of the file that everything is told to."""

OPENED: Final = ".opened"
"""What the path of the file has at its end that native code's reads are told to."""

_HOOKED: Final = (ACCOUNT, "OOMDOCTOR_TRIAL_SOCKET", "PYTHONPATH", "LD_PRELOAD")
"""Variables without which a Python would not be watched."""

_HIGH_DESCRIPTOR: Final = 240  # out of the way of programs that expect theirs to be counted from 3
_PYTHON_NAME: Final = re.compile(r"python[\d.]*")
_UNWATCHED: Final = frozenset("EIS")
"""Options of Python's under which it loads no hook."""

_HOOK: Final = f"{__file__.rpartition('/command/')[0]}/agent/"
_OWN_FILES: Final = frozenset({__file__, dependency_recorder.__file__})
_OWN_PURPOSES: Final = ("/ctypes/util.py", "/platform.py", "/uuid.py", "/sysconfig.py")
_OF_THE_MACHINE: Final = frozenset({"ldconfig", "lscpu", "lspci", "nvidia-smi", "uname"})
"""Programs that tell of the machine, whose state counts for no answer."""

_LAUNCHING: Final = "/torch/distributed/"
_ASIDE: Final = (_LAUNCHING, "/accelerate/commands/", "/accelerate/utils/", "/tqdm/utils.py")
"""Where all variables are read and none decides anything: they are copied for a program that is started, and which is
watched itself or else said not to be, or to be put back later, or those that are for progress bars are picked."""

# The function as it was when this was imported: `watch_for` replaces it.
_stat = os.stat


def begin_recording(account: int) -> None:
    """Record from now on.

    Args:
        account: Descriptor of the file to tell; it is copied.
    """
    path = os.environ[ACCOUNT]
    own = fcntl.fcntl(account, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    _write(own, {"python": sys.executable})
    if "OOMDOCTOR_NULL_NAME" in os.environ:
        _note_native_files(f"{path}{OPENED}")
    watch_for(_DependencyAgent(own, {name: os.environ.get(name) for name in _HOOKED}))


def _note_native_files(path: str) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    high = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(opened)
    # The function is the preloaded library's; the package that knows it takes too long to import.
    ctypes.CDLL(None).oomdoctor_null_note_files(ctypes.c_int(high))


def _write(account: int, line: Mapping[str, object]) -> None:
    os.write(account, json.dumps(line).encode() + b"\n")


class _DependencyAgent(Recorder):
    """Records one process of a command, and those that are forked from it.

    Args:
        account: Descriptor of the file to tell.
        hooked: What has to stand in a program's environment for it to be watched.
    """

    def __init__(self, account: int, hooked: Mapping[str, str | None]) -> None:
        super().__init__(account)
        self._hooked = hooked

    def started(self, wanted_by: str, program: Sequence[Any]) -> None:
        """A program was started; a Python with the hook is watched, whoever wanted it."""
        if _is_for_own_purposes(wanted_by) or self._is_watched(program):
            return
        name = _name(program)
        if name.rpartition("/")[2] not in _OF_THE_MACHINE:
            self.escaped(f"the command started `{name}`, which nobody watched")

    def variable(self, name: str) -> None:
        """A variable was read; what the hook reads decides nothing."""
        if name not in self._variables and not _is_asked_aside(name):
            super().variable(name)

    def replaced(self, path: object) -> None:
        """Tell what the command makes, too: what native code reads of it is the command's own."""
        name = self._path(path)
        if name is not None and not self._is_own(name):
            _write(self._account, {"own": name, "is_new": not _exists(name), "is_temporary": _is_temporary()})
        super().replaced(path)

    def _is_watched(self, program: Sequence[Any]) -> bool:
        """Whether it is this Python once more, with all that makes it load the hook."""
        path, words, variables = program[0], program[1:2], program[-1]
        if not words or not isinstance(path, str | bytes | os.PathLike) or isinstance(words[0], str | bytes):
            return False
        environment = os.environ if variables is None else variables
        if any(_variable(environment, name) != value for name, value in self._hooked.items()):
            return False
        return _is_own_python(os.fsdecode(path)) and _loads_hook([os.fsdecode(word) for word in words[0]][1:])


def _is_temporary() -> bool:
    """Whether `tempfile` makes it, under a name that no other run has."""
    return next((name for name in callers() if name not in _OWN_FILES), "").endswith("/tempfile.py")


def _is_asked_aside(variable: str) -> bool:
    asker = next((name for name in callers() if name != __file__ and not is_standard(name)), "")
    return asker.startswith(_HOOK) or (variable == ALL_VARIABLES and any(part in asker for part in _ASIDE))


def _is_for_own_purposes(wanted_by: str) -> bool:
    """Whether Python's library or torch wanted it for itself; not where they launch what the command names."""
    if is_standard(wanted_by):
        return wanted_by.endswith(_OWN_PURPOSES)
    return is_known(wanted_by) and _LAUNCHING not in wanted_by


def _is_own_python(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    own, _, _ = sys.executable.rpartition("/")
    return bool(_PYTHON_NAME.fullmatch(name)) and os.path.normpath(folder) == os.path.normpath(own)


def _loads_hook(options: Sequence[str]) -> bool:
    for option in options:
        if not option.startswith("-") or option in ("-c", "-m"):
            return True
        if not option.startswith(("-X", "-W")) and not _UNWATCHED.isdisjoint(option):
            return False
    return True


def _variable(environment: Mapping[Any, Any], name: str) -> str | None:
    value = environment.get(name)
    if value is None and environment is not os.environ:
        value = environment.get(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def _name(program: Sequence[Any]) -> str:
    first = program[0] if isinstance(program[0], str | bytes | os.PathLike) else program[1][0]
    return os.fsdecode(first)


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


_MOST_CONTENT_BYTES: Final = 64 * 1024**2
_PYTHON: Final = re.compile(r"python[\d.]*")
_LONGEST_HEAD: Final = 512
_DEEPEST: Final = 4
_GRAIN_SECONDS: Final = 0.02
"""By how much a file's times may lie behind the clock."""


class CommandDependencies:
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
        gathered = _GatheredUses(str(self._room), self._began)
        if (problem := unseen_start(command, directory, environment)) is not None:
            gathered.unseen[problem] = None
        for line in self._account.read_bytes().splitlines()[1:]:
            gathered.take(line)
        for path in dict.fromkeys(self._opened.read_bytes().split(b"\0")[:-1]):
            gathered.take_native(os.fsdecode(path))
        gathered.leave_temporary()
        return gathered.dependencies()


class _GatheredUses:
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
        return f"{Fingerprint.CONTENT} {path}" in self._seen or f"{Fingerprint.SIGNATURE} {path}" in self._seen

    def _looked_at(self, path: str) -> tuple[str, str]:
        """A file that may be too long to be read, and how it is now."""
        size = _size(path)
        way = Fingerprint.CONTENT if size <= self._left_bytes else Fingerprint.SIGNATURE
        self._left_bytes -= size if way is Fingerprint.CONTENT else 0
        return f"{way} {path}", fingerprint(way, path)

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
