"""Tells, from inside a Python of a command, what it uses. The hook begins it; every Python of each trial waits for it.

Everything is told when it is seen first: in the end the process is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.probing import dependency_recorder
from oomdoctor.probing.dependencies import ALL_VARIABLES
from oomdoctor.probing.dependency_paths import is_known, is_standard
from oomdoctor.probing.dependency_recorder import Recorder
from oomdoctor.probing.dependency_watch import callers, watch_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ACCOUNT: Final = "OOMDOCTOR_TRIAL_USES"
"""Variable with the path of the file that everything is told to."""

OPENED: Final = ".opened"
"""What the path of the file has at its end that native code's reads are told to."""

_HOOKED: Final = (ACCOUNT, "OOMDOCTOR_TRIAL_SOCKET", "PYTHONPATH", "LD_PRELOAD")
"""Variables without which a Python would not be watched."""

_HIGH_DESCRIPTOR: Final = 240  # out of the way of programs that expect theirs to be counted from 3
_PYTHON: Final = re.compile(r"python[\d.]*")
_UNWATCHED: Final = frozenset("EIS")
"""Options of Python's under which it loads no hook."""

_HOOK: Final = f"{__file__.rpartition('/probing/')[0]}/running/hook/"
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


def begin(account: int) -> None:
    """Record from now on.

    Args:
        account: Descriptor of the file to tell; it is copied.
    """
    path = os.environ[ACCOUNT]
    own = fcntl.fcntl(account, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    _write(own, {"python": sys.executable})
    if "OOMDOCTOR_NULL_NAME" in os.environ:
        _note_native_files(f"{path}{OPENED}")
    watch_for(_Witness(own, {name: os.environ.get(name) for name in _HOOKED}))


def _note_native_files(path: str) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    high = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(opened)
    # The function is the preloaded library's; the package that knows it takes too long to import.
    ctypes.CDLL(None).oomdoctor_null_note_files(ctypes.c_int(high))


def _write(account: int, line: Mapping[str, object]) -> None:
    os.write(account, json.dumps(line).encode() + b"\n")


class _Witness(Recorder):
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
    return bool(_PYTHON.fullmatch(name)) and os.path.normpath(folder) == os.path.normpath(own)


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
