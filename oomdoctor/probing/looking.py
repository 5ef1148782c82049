"""Ways to look at something on disk that give the same text for as long as it has not changed.

The worker looks when the target uses a thing for the first time; the cache looks again later. A file's times do not
count, so that a fresh checkout of the same files is the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
from enum import StrEnum
from importlib.machinery import all_suffixes
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ABSENT: Final = "absent"
CACHE_NAME: Final = ".oomdoctor-cache"
UNCOUNTED: Final = frozenset({"__pycache__", CACHE_NAME})
"""Names that come and go with a run and that no listing counts."""

_PACKAGE_ENDINGS: Final = (".dist-info", ".egg-info", ".egg-link", ".egg")
_SUFFIXES: Final = tuple(all_suffixes())
# The functions as they were when this was imported: the worker replaces those of `os` to see who asks.
_stat, _scandir = os.stat, os.scandir


class Look(StrEnum):
    """A way to look."""

    CONTENT = "content"  # what a file holds; whether it is there at all
    SIGNATURE = "signature"  # a file's size and times, where reading it would take too long
    LISTING = "listing"  # names in a directory, and which are directories
    PACKAGES = "packages"  # names in a directory that say what is installed there
    MODULE = "module"  # what `import` finds in a directory under a name; the path ends in the module's name


def look(way: Look, path: str) -> str:
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


_WAYS: Mapping[Look, Callable[[str], str]] = MappingProxyType(
    {
        Look.CONTENT: _content,
        Look.SIGNATURE: _signature,
        Look.LISTING: _listing,
        Look.PACKAGES: _packages,
        Look.MODULE: _module,
    }
)
