"""Answers of probes, kept in a folder for as long as nothing that could change them changes.

The key of an answer is everything that decides it and can be told before the target runs; its dependencies are what
the target used while it ran. The documentation says what goes unseen: programs that installed libraries start, the
network, the clock and the state of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import oomdoctor
from oomdoctor.agent.dependencies import CACHE_NAME, UNCOUNTED, fingerprint
from oomdoctor.agent.dependency_recorder import ALL_VARIABLES
from oomdoctor.codec import decode, encode
from oomdoctor.command.dependencies import found_program
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.monitor import has_local_gpu
from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.output import write_atomically
from oomdoctor.results import ProbeResult  # noqa: TC001 - the same
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.dependencies import Dependencies  # noqa: TC001 - read when an answer is decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oomdoctor.request import ProbeRequest


_PACKAGE: Final = Path(oomdoctor.__file__).parent
_APART: Final = frozenset(
    {"api", "check", "cli", "diagnose", "lint", "pytest_plugin", "report", "schemas", "verification"}
)
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
    """Of all packages: the names of what lies beside them have their versions; and of what extends Python's path.

    A folder inside a package does not count: Ray puts one of its own on the path of a process that imports it.
    """
    folders = [Path(entry) for entry in sys.path if Path(entry).name in _INSTALLED]
    return _digest(part for folder in folders if folder.is_dir() for part in _folder(folder))


def _folder(folder: Path) -> Iterator[bytes]:
    yield str(folder).encode(errors="surrogateescape")
    yield from sorted(
        path.name.encode(errors="surrogateescape") for path in folder.iterdir() if (path.name not in UNCOUNTED)
    )
    yield from _contents(sorted(folder.glob("*.pth")), folder)


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
    directory = Path(request.directory).resolve()  # `..` from a subfolder is the same folder
    files = {path for pattern in request.inputs for path in directory.glob(pattern) if path.is_file()}
    described = json.dumps(
        (
            {
                "format": _FORMAT,
                "request": {**asdict(request), "directory": str(directory)},
                # A file or module that comes or goes can make the same text name another target.
                "reference": _reference(request, directory, environment),
                "environment": {
                    name: value for name, value in environment.items() if name.startswith(_NATIVE_PREFIXES)
                },
                "platform": [sys.platform, platform.machine()],
                "python": [sys.version, sys.prefix],
                "oomdoctor": own_code(),
                "torch": torch_files(),
                "packages": installed_packages(),
                "inputs": {
                    str(path.relative_to(directory)): fingerprint("content", str(path)) for path in sorted(files)
                },
            }
        ),
        sort_keys=True,
    )
    return hashlib.sha256(described.encode()).hexdigest()[:40]


def _reference(request: ProbeRequest, directory: Path, environment: Mapping[str, str]) -> object:
    if request.command is None:
        return asdict(parse_reference(request.target, directory=directory))
    return found_program(request.command, directory, environment)


_SETTLED_SECONDS: Final = 2.0
"""A file that was changed this lately may be changed again without its times showing it."""

_SHELL_VARIABLES: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES"})
"""Variables that a shell changes from one command to the next; they count where they are asked for one by one."""


class Fingerprints:
    """Looks at things again; a file that many answers depend on is read once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, str]] = {}

    def sees(self, seen: Mapping[str, str]) -> bool:
        """Return whether everything is as it was seen; stop at the first thing that is not."""
        return all(self._look(key) == state for key, state in seen.items())

    def _look(self, key: str) -> str:
        way, _, path = key.partition(" ")
        if way != "content":
            return fingerprint(way, path)
        signature, known = fingerprint("signature", path), self._read.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        state = fingerprint(way, path)
        if _is_settled(path):
            self._read[path] = signature, state
        return state


def is_here(dependencies: Dependencies) -> bool:
    """Return whether the working directory is the one that relative paths started from, where there were any."""
    return dependencies.working_directory in (None, str(Path.cwd()))


def digest_of(variables: Iterable[str], environment: Mapping[str, str]) -> str:
    """Return the values of variables, of which some may be secret, in a form that shows whether they have changed.

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


VARIABLE: Final = "OOMDOCTOR_CACHE_DIR"
MOST_BYTES: Final = 64 * 1024**2
MOST_ENTRY_BYTES: Final = 16 * 1024**2
MOST_OF_A_QUESTION: Final = 4
"""Answers to one question, such as those on branches that somebody goes back and forth between."""

_MARKS: Final = (
    (".gitignore", "*\n"),
    ("CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# Answers of `oomdoctor check`; safe to delete.\n"),
)


def cache_folder(configuration: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder of a configuration's answers: `OOMDOCTOR_CACHE_DIR`, or `.oomdoctor-cache` beside the file.

    Args:
        configuration: The configuration file.
        environment: Variables by name.
    """
    chosen = environment.get(VARIABLE, "")
    return Path(chosen).absolute() if chosen else configuration.absolute().parent / CACHE_NAME


def answer_files(folder: Path, key: str) -> list[Path]:
    """Files with answers to one question, the one that was used last first."""
    return [path for path, _ in _newest_first(folder, f"{key}-*.json")]


def read_answer_file(path: Path) -> str | None:
    """Return the text of a file; None where it cannot be read or is far too long."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_ENTRY_BYTES + 1)
        return content.decode() if len(content) <= MOST_ENTRY_BYTES else None
    except (OSError, ValueError):
        return None


def mark_used(path: Path) -> None:
    """Note that an answer was used, so that others are removed before it."""
    with suppress(OSError):
        os.utime(path)


def write_answer_file(folder: Path, key: str, state: str, text: str) -> None:
    """Keep an answer, and remove those that have not been used for longest.

    A folder that cannot be written to is left as it is: a cache is a convenience.

    Args:
        folder: The cache's folder; made where it does not exist.
        key: Name of the question.
        state: Name of what the answer depended on.
        text: The answer.
    """
    with suppress(OSError, UsageError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _MARKS:
            if not (folder / name).exists():
                write_atomically(folder / name, content)
        write_atomically(folder / f"{key}-{state}.json", text)
        _remove(answer_files(folder, key)[MOST_OF_A_QUESTION:])
        total, beyond = 0, []
        for path, size in _newest_first(folder, "*.json"):
            total += size
            if total > MOST_BYTES:
                beyond.append(path)
        _remove(beyond)


def _newest_first(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    """Files and their sizes; another check may remove any of them at any moment."""
    found = []
    for path in folder.glob(pattern):
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, path.name, path, status.st_size))
    return [(path, size) for _, _, path, size in sorted(found, reverse=True)]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


@dataclass(frozen=True, slots=True)
class _Answer:
    """One file of the cache.

    Attributes:
        dependencies: What the target used.
        variables: Digest of the variables among it.
        versions: Version by name, of what answered.
        result: What it found.
    """

    dependencies: Dependencies
    variables: str
    versions: dict[str, str]
    result: ProbeResult


class Cache:
    """Answers in a folder, which several checks may use at once.

    Args:
        folder: Where they are; made with the first answer.
        environment: Variables by name, as the probes have them.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._looker = Fingerprints()
        self._keys: dict[ProbeRequest, str | None] = {}

    def find(self, request: ProbeRequest) -> ProbeRun | None:
        """Return the answer to a question that was asked before and whose answer would be the same now; else None."""
        key = self._keys[request] = self._key(request)
        for path in [] if key is None else answer_files(self._folder, key):
            answer = _read(path)
            if answer is not None and self._holds(answer):
                mark_used(path)
                return ProbeRun(answer.result, answer.versions, answer.dependencies)
        return None

    def keep(self, request: ProbeRequest, probe: ProbeRun) -> str | None:
        """Keep an answer, unless it came from a real GPU or may depend on something that nobody saw.

        What has changed since the question was asked, or since the target used it, would give another answer.

        Returns:
            Why it is not kept, where something about the target is the reason; else None.
        """
        key = self._key(request)
        used = probe.dependencies
        answer = _Answer(used, digest_of(used.variables, self._environment), probe.versions, probe.result)
        if key is None or self._keys.get(request, key) != key or probe.result.device.kind != "null":
            return None
        if used.unseen:
            return used.unseen[0]
        if not self._holds(answer):
            return self._what_changed(used)
        state = json.dumps([encode(used), answer.variables], sort_keys=True)
        name = hashlib.sha256(state.encode()).hexdigest()[:16]
        write_answer_file(self._folder, key, name, json.dumps(encode(answer), allow_nan=False) + "\n")
        return None

    def _what_changed(self, used: Dependencies) -> str:
        for key, state in used.seen.items():
            if not self._looker.sees({key: state}):
                return f"`{key.partition(' ')[2]}` changed while it was probed"
        return "the environment changed while it was probed"

    def _key(self, request: ProbeRequest) -> str | None:
        """Return the question's name; None for a question whose answer is not to be kept, or that has none."""
        try:
            return key_of(request, self._environment) if is_repeatable(request, self._environment) else None
        except (OomdoctorError, OSError):
            return None

    def _holds(self, answer: _Answer) -> bool:
        used = answer.dependencies
        return (
            not used.unseen
            and is_here(used)
            and digest_of(used.variables, self._environment) == answer.variables
            and self._looker.sees(used.seen)
        )


def _read(path: Path) -> _Answer | None:
    """Return the answer in a file; None for what is none, whoever wrote it."""
    try:
        return decode(_Answer, json.loads(read_answer_file(path) or ""), "")
    except Exception:  # noqa: BLE001 - what is cut short or made up may go wrong in any way, and is no answer
        return None
