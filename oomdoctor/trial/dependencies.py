"""Dependencies of an answer: what the target used on disk and of the environment, and fingerprints of files.

A file's times do not count, so that a fresh checkout of the same files is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.machinery import all_suffixes
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


ALL_VARIABLES: Final = "*"
"""Among the names of variables: the whole environment was read, for example to be copied."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the target's code used, as the worker saw it from before the target was imported.

    Attributes:
        seen: Each thing that was looked at, such as `content /home/a/model.py`, and what was there when it was looked
            at first; `fingerprint` looks again.
        variables: Names of environment variables that were read, sorted; `*` where all were.
        working_directory: The worker's, where a relative path was used or it was asked for; else None.
        unseen: Why something else may have been used that nobody saw, such as a program that was started; an answer
            with any of these must not be used again.
    """

    seen: dict[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    working_directory: str | None = None
    unseen: tuple[str, ...] = ()

    def __or__(self, other: Dependencies) -> Dependencies:
        """What either used; what the two saw differently was changed between them."""
        changed = [
            f"`{key}` changed meanwhile" for key, state in other.seen.items() if self.seen.get(key, state) != state
        ]
        return Dependencies(
            seen={**other.seen, **self.seen},
            variables=tuple(sorted({*self.variables, *other.variables})),
            working_directory=self.working_directory or other.working_directory,
            unseen=tuple(dict.fromkeys((*self.unseen, *other.unseen, *changed))),
        )


def line_of(news: Dependencies) -> bytes:
    """One line of an account that several processes write; the general way to serialise takes too long to import."""
    # As `asdict` would have it, which takes ten times as long, thousands of times.
    fields = {
        "seen": news.seen,
        "variables": news.variables,
        "working_directory": news.working_directory,
        "unseen": news.unseen,
    }
    return json.dumps(fields).encode() + b"\n"


def read_lines(account: bytes) -> Iterator[Dependencies]:
    """What stands in an account; a line that is none, such as one whose writer was ended, says so."""
    for line in account.splitlines():
        try:
            found = json.loads(line)
            yield Dependencies(
                dict(found["seen"]),
                tuple(found["variables"]),
                found["working_directory"],
                tuple(found["unseen"]),
            )
        except (ValueError, TypeError, KeyError):
            yield Dependencies(unseen=("a process was ended while it said what it used",))


ABSENT: Final = "absent"
CACHE_NAME: Final = ".oomdoctor-cache"
UNCOUNTED: Final = frozenset({"__pycache__", CACHE_NAME})
"""Names that come and go with a run and that no listing counts."""

_PACKAGE_ENDINGS: Final = (".dist-info", ".egg-info", ".egg-link", ".egg")
_SUFFIXES: Final = tuple(all_suffixes())
# The functions as they were when this was imported: the worker replaces those of `os` to see who asks.
_stat, _scandir = os.stat, os.scandir


class Fingerprint(StrEnum):
    """A way to look."""

    CONTENT = "content"  # what a file holds; whether it is there at all
    SIGNATURE = "signature"  # a file's size and times, where reading it would take too long
    LISTING = "listing"  # names in a directory, and which are directories
    PACKAGES = "packages"  # names in a directory that say what is installed there
    MODULE = "module"  # what `import` finds in a directory under a name; the path ends in the module's name


def fingerprint(way: Fingerprint, path: str) -> str:
    """What is there now; `absent` where nothing is.

    Args:
        way: How to look.
        path: An absolute path.
    """
    try:
        return _WAYS[way](path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a path with a null byte is no path
        return ABSENT
    except OSError as error:
        return f"error {error.errno}"


def _content(path: str) -> str:
    status = _stat(path)
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait, and take from its reader
        return "special"
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib would call the functions that the worker has replaced
        return hashlib.file_digest(file, "sha256").hexdigest()


def _signature(path: str) -> str:
    status = _stat(path)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _listing(path: str) -> str:
    return _digest(name for name in _names(path) if name.rstrip("/") not in UNCOUNTED)


def _packages(path: str) -> str:
    return _digest(name for name in _names(path) if name.rstrip("/").endswith(_PACKAGE_ENDINGS))


def _names(path: str) -> list[str]:
    with _scandir(path) as entries:
        return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


def _module(path: str) -> str:
    """The file or directory that Python's own finder would take; a package goes before a module of its name."""
    for base in (f"{path}/__init__", path):
        for suffix in _SUFFIXES:
            if _mode(base + suffix, stat.S_ISREG):
                return base[len(path) :] + suffix
    return "directory" if _mode(path, stat.S_ISDIR) else ABSENT


def _mode(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        return is_kind(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


_WAYS: Mapping[Fingerprint, Callable[[str], str]] = MappingProxyType(
    {
        Fingerprint.CONTENT: _content,
        Fingerprint.SIGNATURE: _signature,
        Fingerprint.LISTING: _listing,
        Fingerprint.PACKAGES: _packages,
        Fingerprint.MODULE: _module,
    }
)
