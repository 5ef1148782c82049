"""Fingerprints of files and folders, and which of them an answer can depend on."""

# ruff: noqa: PTH100, PTH109, PTH112, PTH113, PTH115, PTH116, PTH118, PTH120, PTH123 - pathlib takes longer to import
# ruff: noqa: ANN401 - paths in every form that `os` takes

from __future__ import annotations

import hashlib
import os
import stat
import sys
import sysconfig
from importlib.machinery import all_suffixes
from importlib.util import find_spec, source_from_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ABSENT = "absent"

CACHE_NAME = ".oomdoctor-cache"
UNCOUNTED = frozenset({"__pycache__", CACHE_NAME})
"""Names that come and go with a run and that no listing counts."""

MOST_CONTENT_BYTES = 64 * 1024**2
"""Read in all to tell whether files have changed; of what is larger, size and times have to do."""
_CHUNK = 1 << 20
_SUFFIXES = tuple(all_suffixes())


# --- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(way: str, path: str) -> str:
    """Return a text that is the same for as long as what is at a path is; times do not count.

    Args:
        way: `content` (a file), `signature` (size and times of a file that is too large to read), `listing` (names in a
            folder) or `module` (what `import` finds in a folder; the path ends in the module's name).
        path: An absolute path.

    Returns:
        The text; `absent` where nothing is there.
    """
    if way not in _WAYS:  # in an answer that another version wrote, or nobody
        return f"no way to look: {way}"
    try:
        return _WAYS[way](path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a path with a null byte is no path
        return ABSENT
    except OSError as error:
        return f"error {error.errno}"


def _content(path: str) -> str:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):  # reading a pipe would wait, and take from its reader
        return "directory" if stat.S_ISDIR(mode) else "special"
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def _signature(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _listing(path: str) -> str:
    with os.scandir(path) as entries:
        counted = [each for each in entries if each.name not in UNCOUNTED]
        names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in counted)
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


def _module(path: str) -> str:
    """Return the file or folder that Python's own finder would take; a package goes before a module of its name."""
    for base in (f"{path}/__init__", path):
        for suffix in _SUFFIXES:
            if os.path.isfile(base + suffix):
                return base[len(path) :] + suffix
    return "directory" if os.path.isdir(path) else ABSENT


_WAYS = {"content": _content, "signature": _signature, "listing": _listing, "module": _module}


# --- paths that count ------------------------------------------------------------------------------------------------


def _roots_of(*packages: str) -> Iterator[str]:
    for package in packages:
        spec = find_spec(package)
        yield from () if spec is None else (f"{root}/" for root in spec.submodule_search_locations or ())


LIBRARY = sysconfig.get_path("stdlib")
_STANDARD_ROOTS = (
    "<frozen ",
    f"{LIBRARY}/",
    f"{sysconfig.get_path('platstdlib')}/",
    # Python looks into an archive of its library too, which hardly any installation has.
    f"{os.path.dirname(LIBRARY)}/python{sys.version_info[0]}{sys.version_info[1]}.zip/",
)
AGENT_ROOT = f"{os.path.dirname(os.path.abspath(__file__))}/"
PACKAGE_ROOTS = (*_roots_of("torch", "triton", "oomdoctor"), AGENT_ROOT)
_DEVICES = ("/dev/", "/proc/", "/sys/")
_COMPILED = ("/torchinductor_", "/.triton/")
"""Folders of the compiler's caches, which count for no answer: torch would compile the same again."""


def is_installed(path: str) -> bool:
    """Return whether a path belongs to an installed package, whose version the name of its `.dist-info` has."""
    return "/site-packages/" in path or "/dist-packages/" in path


def is_standard(path: str) -> bool:
    """Return whether a path belongs to Python itself."""
    return path.startswith(_STANDARD_ROOTS) and not is_installed(path)


def can_change(path: str) -> bool:
    """Return whether a path can change an answer and is not known otherwise; that of a folder ends in a slash."""
    if path.startswith(PACKAGE_ROOTS) or is_standard(path) or path.startswith(_DEVICES):
        return False  # Python, torch and oomdoctor are known by more than their files
    if any(part in path for part in _COMPILED) or (path.endswith(".so") and is_installed(path)):
        return False
    return UNCOUNTED.isdisjoint(path.split("/"))


def source(path: str) -> str:
    """Return the source that compiled code was made from; the path itself where it is no such code."""
    try:
        return source_from_cache(path) if path.endswith(".pyc") else path
    except ValueError:
        return path


def absolute(path: Any) -> str | None:
    """Return the path as text; None for what is none, such as a pipe's descriptor."""
    if isinstance(path, int):
        name = os.readlink(f"/proc/self/fd/{path}")
        return name if name.startswith("/") else None
    name = os.path.join(os.getcwd(), os.fsdecode(path))
    # After a symbolic link, `..` leads elsewhere than the text says.
    return os.path.realpath(name) if "/.." in name else os.path.normpath(name)
