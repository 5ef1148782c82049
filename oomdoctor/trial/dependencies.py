"""Dependencies of an answer: what its processes used, gathered from their accounts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oomdoctor.agent.dependencies import MOST_CONTENT_BYTES, can_change, fingerprint, is_installed, source
from oomdoctor.agent.dependency_recorder import record_worker

GRAIN_SECONDS: Final = 0.02
"""By how much a file's times may lie behind the clock."""
_CUT_SHORT: Final = "a process was ended while it said what it used"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Things that a target's code used, from before it was imported.

    Attributes:
        seen: Each thing that was looked at, such as `content /home/a/model.py`, and its fingerprint when it was looked
            at first; `oomdoctor.agent.dependencies.fingerprint` looks again.
        variables: Names of environment variables that were read, sorted; `*` where all were.
        working_directory: The worker's, where a relative path was used; else None.
        unseen: Why something else may have been used that nobody saw, such as a program that was started; an answer
            with any of these must not be used again.
    """

    seen: dict[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    working_directory: str | None = None
    unseen: tuple[str, ...] = ()

    def __or__(self, other: Dependencies) -> Dependencies:
        """Return what either used; what the two saw differently was changed between them."""
        changed = [
            f"`{key}` changed meanwhile" for key, state in other.seen.items() if self.seen.get(key, state) != state
        ]
        return Dependencies(
            seen={**other.seen, **self.seen},
            variables=tuple(sorted({*self.variables, *other.variables})),
            working_directory=self.working_directory or other.working_directory,
            unseen=tuple(dict.fromkeys((*self.unseen, *other.unseen, *changed))),
        )


UNWATCHED: Final = Dependencies(unseen=("nobody watched what was used",))
"""Of processes that nobody asked to be watched."""


class WatchedWorker:
    """Watches what this process uses, from now until it ends."""

    def __init__(self) -> None:
        self._began = time.time() - GRAIN_SECONDS
        self._recorder = record_worker()

    def dependencies(self) -> Dependencies:
        """Return what was used so far."""
        return gather(*self._recorder.report(), began=self._began)


def gather(account: bytes, opened: bytes, *, began: float, ignored: str = "\0") -> Dependencies:
    """Put an account together.

    Args:
        account: Lines that processes told; see `oomdoctor.agent.dependencies`.
        opened: Paths that native code opened, each with a zero byte.
        began: When the first of the processes began, in seconds since the epoch.
        ignored: A folder of ours, whose files count for nothing.
    """
    gathered = _Gathered(began, ignored)
    for line in account.splitlines():
        gathered.take(line)
    for path in dict.fromkeys(opened.split(b"\0")[:-1]):
        gathered.take_native(os.fsdecode(path))
    return gathered.dependencies()


class _Gathered:
    """Dependencies as they come together; see `gather`."""

    def __init__(self, began: float, ignored: str) -> None:
        self._began = began
        self._ignored = ignored
        self._seen: dict[str, str] = {}
        self._variables: set[str] = set()
        self._directories: list[str] = []
        self._own: dict[str, bool] = {}
        self._temporary: set[str] = set()
        self._unseen: dict[str, None] = {}
        self._pythons = 0
        self._left_bytes = MOST_CONTENT_BYTES

    def take(self, line: bytes) -> None:
        """Take in one line; one that is none was cut short."""
        try:
            self._take(json.loads(line))
        except (ValueError, TypeError, KeyError):
            self._unseen[_CUT_SHORT] = None

    def _take(self, told: dict[str, Any]) -> None:
        ((kind, value), *_) = told.items()
        if kind == "seen":
            self._see(*map(str, value))
        elif kind == "variable":
            self._variables.add(str(value))
        elif kind == "directory":
            self._directories.append(str(value))
        elif kind == "unseen":
            self._unseen[str(value)] = None
        elif kind == "own":
            self._own.setdefault(str(value), bool(told["is_new"]))
            self._temporary.update([str(value)] if told["is_temporary"] else ())
        elif kind == "python":
            self._pythons += 1

    def _see(self, key: str, state: str) -> None:
        if self._seen.setdefault(key, state) != state:
            self._unseen[_changed(key.partition(" ")[2])] = None

    def take_native(self, path: str) -> None:
        """Take in a file that any code opened; those that Python opened are known already."""
        path = source(os.path.normpath(path))
        if (
            is_installed(path)
            or not can_change(path)
            or path.startswith(self._ignored)
            or (f"content {path}" in self._seen or f"signature {path}" in self._seen)
        ):
            return
        maker = next((one for one in (path, *map(str, Path(path).parents)) if one in self._own), None)
        if maker is not None and self._own[maker]:
            return
        if maker is not None or _is_changed_since(path, self._began):
            self._unseen[_changed(path)] = None
        way = "content" if _size(path) <= self._left_bytes else "signature"
        self._left_bytes -= _size(path) if way == "content" else 0
        self._see(f"{way} {path}", fingerprint(way, path))

    def dependencies(self) -> Dependencies:
        """Return all of it."""
        if not self._pythons:
            self._unseen["no Python said what it used"] = None
        seen = {key: state for key, state in self._seen.items() if not self._is_temporary(key.partition(" ")[2])}
        directory = next(iter(self._directories), None)
        return Dependencies(seen, tuple(sorted(self._variables)), directory, tuple(self._unseen))

    def _is_temporary(self, path: str) -> bool:
        """Return whether `tempfile` made it: its name is another in each run, and other processes look at it, too."""
        return not self._temporary.isdisjoint([path, *map(str, Path(path).parents)])


def _changed(path: str) -> str:
    return f"`{path}` changed while the target ran"


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
