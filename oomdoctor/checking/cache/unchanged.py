"""Whether what an answer depended on is still as it was."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.dependencies import ALL_VARIABLES
from oomdoctor.probing.looking import Look, look

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oomdoctor.probing.dependencies import Dependencies

_WAYS: Final = frozenset(Look)
_SETTLED_SECONDS: Final = 2.0
"""A file that was changed this lately may be changed again without its times showing it."""

_SHELL_VARIABLES: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES"})
"""What a shell changes from one command to the next; they count where they are asked for, and not in a copy of all."""


class Looker:
    """Looks at things again; a file that many answers depend on is read once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, str]] = {}

    def sees(self, seen: Mapping[str, str]) -> bool:
        """Whether everything is as it was seen; stops at the first thing that is not."""
        return all(self._look(key) == state for key, state in seen.items())

    def _look(self, key: str) -> str:
        way, _, path = key.partition(" ")
        if way not in _WAYS:  # written by another version, or by nobody
            return f"no way to look: {way}"
        if way != Look.CONTENT:
            return look(Look(way), path)
        signature, known = look(Look.SIGNATURE, path), self._read.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        state = look(Look.CONTENT, path)
        if _is_settled(path):
            self._read[path] = signature, state
        return state


def is_here(dependencies: Dependencies) -> bool:
    """Whether the working directory is the one that relative paths were meant from, where there were any."""
    return dependencies.working_directory in (None, str(Path.cwd()))


def digest_of(variables: Iterable[str], environment: Mapping[str, str]) -> str:
    """The values of variables, of which some may be secret, in a form that shows whether they have changed.

    Args:
        variables: Names; `*` for all.
        environment: Variables by name.
    """
    names = set(variables)
    if ALL_VARIABLES in names:
        names = (names | environment.keys()) - _SHELL_VARIABLES
    values = [[name, environment.get(name)] for name in sorted(names)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _is_settled(path: str) -> bool:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return False
    return time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS
