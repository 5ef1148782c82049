"""Which paths have to be looked at again before an answer may be used again; what is known otherwise need not be."""

from __future__ import annotations

import os
import sys
import sysconfig
from contextlib import suppress
from importlib.util import find_spec, source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.looking import UNCOUNTED

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_DEVICES: Final = ("/dev/", "/proc/", "/sys/")
_COMPILED: Final = ("/torchinductor_", "/.triton/")
"""Where torch's compiler keeps what it made; it would make the same again."""

# The functions as they were when this was imported: `dependency_watch` replaces those of `os`.
_getcwd = os.getcwd


def _standard_roots() -> Iterator[str]:
    yield "<frozen "
    for name in ("stdlib", "platstdlib"):
        yield f"{sysconfig.get_path(name)}/"
    # Python looks into an archive of its library too, which hardly any installation has.
    yield f"{Path(sysconfig.get_path('stdlib')).parent}/python{sys.version_info[0]}{sys.version_info[1]}.zip/"


def _package_roots() -> Iterator[str]:
    for package in ("torch", "triton", "oomdoctor"):
        spec = find_spec(package)
        yield from () if spec is None else (f"{root}/" for root in spec.submodule_search_locations or ())


_STANDARD_ROOTS: Final = tuple(_standard_roots())
_PACKAGE_ROOTS: Final = tuple(_package_roots())


def is_known(path: str) -> bool:
    """Whether it belongs to Python, torch or oomdoctor, which are known by more than their files."""
    return path.startswith(_PACKAGE_ROOTS) or is_standard(path)


def is_standard(path: str) -> bool:
    """Whether it belongs to Python itself."""
    return path.startswith(_STANDARD_ROOTS) and not is_installed(path)


def is_installed(path: str) -> bool:
    """Whether it belongs to an installed package, whose version the name of its `.dist-info` has."""
    return any(part in path for part in _INSTALLED)


def can_change(path: str) -> bool:
    """Whether what is there can change an answer and is not known otherwise; a directory's path ends in a slash."""
    if is_known(path) or path.startswith(_DEVICES) or any(part in path for part in _COMPILED):
        return False
    if path.endswith(".so") and is_installed(path):
        return False
    return UNCOUNTED.isdisjoint(path.split("/"))


def absolute(path: object) -> str | None:
    """The path as text; None for what is none, such as a pipe's descriptor.

    Args:
        path: In any form that `os` takes.
    """
    if isinstance(path, int):
        name = str(Path(f"/proc/self/fd/{path}").readlink())
        return name if name.startswith("/") else None
    name = os.fsdecode(path)  # type: ignore[arg-type]
    name = name if name.startswith("/") else f"{_getcwd()}/{name}"
    # After a symbolic link, `..` leads elsewhere than the text says.
    return os.path.realpath(name) if "/.." in name else os.path.normpath(name)


def is_relative(path: object) -> bool:
    """Whether it depends on the working directory."""
    return not isinstance(path, int) and not os.fsdecode(path).startswith("/")  # type: ignore[arg-type]


def source(path: str) -> str:
    """The source that compiled code was made from; the path itself where it is no such code."""
    if path.endswith(".pyc"):
        with suppress(ValueError):
            return source_from_cache(path)
    return path
