"""Fingerprints of what is installed, had without importing it."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import oomdoctor
from oomdoctor.devices.torch_build import find_torch
from oomdoctor.probing.looking import UNCOUNTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PACKAGE: Final = Path(oomdoctor.__file__).parent
_APART: Final = frozenset({"api", "checking", "cli", "diagnosis", "lint", "pytest_plugin", "reports", "schemas"})
"""Rooms of the package that a probe does not enter."""

_SOURCES: Final = frozenset({".c", ".h", ".py", ".toml"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


@cache
def own_code() -> str:
    """Of oomdoctor itself: its version, the code that probes, the null GPU's source, the catalogue and the examples."""
    return _digest((oomdoctor.__version__.encode(), *_contents(_own_files(), _PACKAGE)))


def torch_files() -> str:
    """Of torch: its version, build and commit, and its native libraries by name and size; empty where there is none."""
    build = find_torch()
    if build is None:
        return ""
    libraries = sorted(build.library_directory.glob("*.so*"))
    sizes = (f"{path.name} {path.stat().st_size}".encode() for path in libraries)
    return _digest((build.version.encode(), (build.root / "version.py").read_bytes(), *sizes))


def installed_packages() -> str:
    """Of all packages: the names of what lies beside them have their versions; and of what extends Python's path."""
    folders = [Path(entry) for entry in sys.path if not _INSTALLED.isdisjoint(Path(entry).parts)]
    return _digest(part for folder in folders if folder.is_dir() for part in _folder(folder))


def _folder(folder: Path) -> Iterator[bytes]:
    yield str(folder).encode(errors="surrogateescape")
    yield from sorted(path.name.encode(errors="surrogateescape") for path in folder.iterdir() if _counts(path))
    yield from _contents(sorted(folder.glob("*.pth")), folder)


def _counts(path: Path) -> bool:
    return path.name not in UNCOUNTED


def _own_files() -> Iterator[Path]:
    rooms = sorted(path for path in _PACKAGE.iterdir() if path.name not in _APART)
    for room in rooms:
        yield from sorted(path for path in (room, *room.rglob("*")) if path.suffix in _SOURCES)


def _contents(files: Iterable[Path], root: Path) -> Iterator[bytes]:
    for path in files:
        yield str(path.relative_to(root)).encode(errors="surrogateescape")
        yield path.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
