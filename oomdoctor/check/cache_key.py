"""The key of an answer in the cache: everything that decides it and can be told before the target runs."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import oomdoctor
from oomdoctor.agent.dependencies import UNCOUNTED, fingerprint
from oomdoctor.command.dependencies import found_program
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.engines.torch_build import find_torch
from oomdoctor.target.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oomdoctor.request import ProbeRequest


_PACKAGE: Final = Path(oomdoctor.__file__).parent
_APART: Final = frozenset({"api", "check", "cli", "diagnose", "lint", "pytest_plugin", "report", "schemas"})
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


_FORMAT: Final = 1
_NATIVE_PREFIXES: Final = (
    *("CUBLAS", "CUDA", "CUDNN", "LD_", "MALLOC_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "PYTORCH_", "TORCH", "TRITON_"),
)
"""Variables that native code or Python itself reads, so that nobody sees them being read."""


def is_repeatable(request: ProbeRequest, environment: Mapping[str, str]) -> bool:
    """Return whether a null GPU would answer; the answer of a real one depends on who else uses it at the time."""
    if request.engine == "auto" and request.gpu is None:
        return request.device is None and not has_local_gpu(environment)
    return request.engine != "cuda"


def key_of(request: ProbeRequest, environment: Mapping[str, str]) -> str:
    """Return a name for the question, of 40 hexadecimal digits; other questions have other names.

    Args:
        request: The question.
        environment: Variables by name.

    Raises:
        TargetError: The request's target names nothing.
        OSError: What is installed cannot be read.
    """
    described = json.dumps(_description(request, environment), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:40]


def _reference(request: ProbeRequest, directory: Path, environment: Mapping[str, str]) -> object:
    if request.command is None:
        return asdict(parse_reference(request.target, directory=directory))
    return found_program(request.command, directory, environment)


def _description(request: ProbeRequest, environment: Mapping[str, str]) -> dict[str, object]:
    directory = Path(request.directory).resolve()  # `..` from a subfolder is the same folder
    return {
        "format": _FORMAT,
        "request": {**asdict(request), "directory": str(directory)},
        # A file or module that comes or goes can make the same text name another target.
        "reference": _reference(request, directory, environment),
        "environment": {name: value for name, value in environment.items() if name.startswith(_NATIVE_PREFIXES)},
        "platform": [sys.platform, platform.machine()],
        "python": [sys.version, sys.prefix],
        "oomdoctor": own_code(),
        "torch": torch_files(),
        "packages": installed_packages(),
        "inputs": _inputs(directory, request.inputs),
    }


def _inputs(directory: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Return the content of every file that is declared, by its path below the folder."""
    files = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return {str(path.relative_to(directory)): fingerprint("content", str(path)) for path in sorted(files)}
