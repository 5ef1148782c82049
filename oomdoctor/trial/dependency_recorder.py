"""Recorder of what the target used, each thing as it was when it was used first. Never imports torch.

It runs in the worker and in the Pythons of commands, each of which waits for its import.
"""

from __future__ import annotations

import fcntl
import os
import sys
import sysconfig
import threading
from contextlib import contextmanager, suppress
from importlib.util import find_spec, source_from_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from oomdoctor.trial.dependencies import ABSENT, UNCOUNTED, Dependencies, Fingerprint, fingerprint, line_of, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any


_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
_DEVICES: Final = ("/dev/", "/proc/", "/sys/")
_COMPILED: Final = ("/torchinductor_", "/.triton/")
"""Where torch's compiler keeps what it made; it would make the same again."""

# The functions as they were when this was imported: `dependency_watch` replaces those of `os`.
_original_getcwd = os.getcwd


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
    name = name if name.startswith("/") else f"{_original_getcwd()}/{name}"
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


_MOST_CONTENT_BYTES: Final = 64 * 1024**2
"""Read in all to tell whether files have changed; for what is more, size and times have to do."""

_MOST_SEEN: Final = 100_000
# The functions as they were when this was imported: `dependency_watch` replaces those of `os`.
_stat, _getcwd, _scandir = os.stat, os.getcwd, os.scandir


class Recorder:
    """What has been used so far.

    A process that is forked, such as a data loader's, reports to the one that it was forked from.

    Args:
        account: Descriptor that everything is told to when it is seen first, as a line each; None where only forks
            have to tell.

    Attributes:
        asked: Absolute paths that `read` need not be told of again: the first time is what counts.
        opened: Descriptor that the null GPU appends the path of each opened file to, each with a zero byte.
    """

    def __init__(self, account: int | None = None) -> None:
        self._seen: dict[str, str] = {}
        self._folders: dict[str, tuple[int, frozenset[str]]] = {}
        self._variables: set[str] = set()
        self._working_directory: str | None = None
        self._unseen: dict[str, None] = {}
        self._own: set[str] = set()
        self._left_bytes = _MOST_CONTENT_BYTES
        self.asked: set[object] = set()
        self._busy = threading.local()
        self._account = os.memfd_create("oomdoctor-dependencies") if account is None else account
        self._is_telling = account is not None
        self.opened = os.memfd_create("oomdoctor-opened")
        fcntl.fcntl(self.opened, fcntl.F_SETFL, os.O_APPEND)
        os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def quietly(self) -> Iterator[bool]:
        """What happens inside is not the target's; False where this already is inside, and nothing is to be done."""
        if getattr(self._busy, "is_busy", False):
            yield False
            return
        self._busy.is_busy = True
        try:
            yield True
        except Exception as error:  # noqa: BLE001 - what the target asked for has to go on
            self.escaped(f"`{type(error).__name__}` when its use of something was to be recorded")
        finally:
            self._busy.is_busy = False

    def read(self, path: object) -> None:
        """A file was opened to read, or asked about."""
        name = self._path(path)
        if name == path:
            self.asked.add(path)
        if name is not None and can_change(source(name)) and not self._is_own(name):
            self._look_at_file(source(name))

    def listed(self, path: object, way: Fingerprint = Fingerprint.LISTING) -> None:
        """The names in a directory were read."""
        name = self._path("." if path is None else path)
        if name is not None and can_change(f"{name}/") and not self._is_own(name):
            self._look(way, name)

    def imported(self, name: str, directories: Iterable[str]) -> None:
        """A module was looked for in these directories."""
        for directory in filter(_is_text, directories):  # Python passes others over, too
            folder = f"{self._path(directory)}/"
            if can_change(folder) and not is_installed(folder):
                self._look_for_module(folder, name.rpartition(".")[2])

    def created(self, path: object) -> None:
        """A file or directory was to be created, which fails where there is one."""
        name = self._path(path)
        if name is not None and fingerprint(Fingerprint.CONTENT, name) != ABSENT:
            self.read(name)
        else:
            self.replaced(path)

    def replaced(self, path: object) -> None:
        """A file was emptied, or another put in its place: what is in it from now on is the target's own."""
        name = self._path(path)
        if name is not None:
            self._own.add(name)

    def variable(self, name: str) -> None:
        """A variable of the environment was read."""
        if name not in self._variables:
            self._variables.add(name)
            self._tell(Dependencies(variables=(name,)))

    def used_working_directory(self) -> None:
        """A relative path was used, or the directory asked for."""
        if self._working_directory is None:
            self._working_directory = _getcwd()
            self._tell(Dependencies(working_directory=self._working_directory))

    def started(self, wanted_by: str, program: Sequence[Any]) -> None:
        """A program was started; what Python or torch starts for its own purposes, such as a compiler, is known.

        Args:
            wanted_by: File of the code that wanted it.
            program: What the audit event has of it.
        """
        if not is_known(wanted_by):
            self.escaped(f"the target started `{os.fsdecode(program[0] or program[1][0])}`")

    def escaped(self, why: str) -> None:
        """Something may have been used that cannot be seen from here."""
        if why not in self._unseen:
            self._unseen[why] = None
            self._tell(Dependencies(unseen=(why,)))

    def report(self) -> Dependencies:
        """All that was used so far, the source of every loaded module and what native code opened included."""
        with self.quietly():
            for module in list(sys.modules.values()):
                file = getattr(module, "__dict__", {}).get("__file__")  # `getattr` alone would wake lazy modules
                if isinstance(file, str):
                    self.read(file)
            for path in self._opened_by_any_code():
                self.read(path)
        told = Dependencies()
        with self.quietly():  # a process that was ended while it told leaves half a line
            for news in self._told_by_forks():
                told |= news
        if len(self._seen) > _MOST_SEEN:
            self.escaped(f"more than {_MOST_SEEN} files and directories")
        variables = tuple(sorted(self._variables))
        return Dependencies(dict(self._seen), variables, self._working_directory, tuple(self._unseen)) | told

    def _opened_by_any_code(self) -> Iterator[str]:
        """Files that are no part of what is installed; those that Python opened are known already."""
        size = os.fstat(self.opened).st_size
        for path in sorted(set(os.pread(self.opened, size, 0).split(b"\0"))):
            name = os.fsdecode(path)
            if name and not is_installed(name):
                yield name

    def _path(self, path: object) -> str | None:
        if is_relative(path):
            self.used_working_directory()
        return absolute(path)

    def _look_at_file(self, path: str) -> None:
        """Look at one that may be too long to be read."""
        if f"{Fingerprint.SIGNATURE} {path}" in self._seen or f"{Fingerprint.CONTENT} {path}" in self._seen:
            return
        try:
            size = _stat(path).st_size
        except (OSError, ValueError):
            size = 0
        is_short = size <= self._left_bytes
        self._left_bytes -= size if is_short else 0
        self._look(Fingerprint.CONTENT if is_short else Fingerprint.SIGNATURE, path)

    def _look(self, way: Fingerprint, path: str) -> None:
        key = f"{way} {path}"
        if key not in self._seen:
            self._see(key, fingerprint(way, path))

    def _see(self, key: str, state: str) -> None:
        if len(self._seen) <= _MOST_SEEN:
            self._seen[key] = state
            self._tell(Dependencies(seen={key: state}))

    def _look_for_module(self, folder: str, name: str) -> None:
        """Look for it only where its folder has a name like it: a look takes a dozen questions, and most find none."""
        key = f"{Fingerprint.MODULE} {folder}{name}"
        beginnings = self._beginnings(folder)
        if key not in self._seen and beginnings is not None and name not in beginnings:
            self._see(key, ABSENT)
        else:
            self._look(Fingerprint.MODULE, folder + name)

    def _beginnings(self, folder: str) -> frozenset[str] | None:
        """What names in a folder begin with, up to a full stop; None where they cannot be had."""
        try:
            time = _stat(folder).st_mtime_ns
            if folder not in self._folders or self._folders[folder][0] != time:
                with _scandir(folder) as entries:
                    self._folders[folder] = time, frozenset(entry.name.partition(".")[0] for entry in entries)
        except (OSError, ValueError):
            return None
        return self._folders[folder][1]

    def _is_own(self, path: str) -> bool:
        return bool(self._own) and not self._own.isdisjoint([path, *map(str, PurePath(path).parents)])

    def _forked(self) -> None:
        self._is_telling = True
        self._busy = threading.local()

    def _tell(self, news: Dependencies) -> None:
        if self._is_telling:
            os.write(self._account, line_of(news))

    def _told_by_forks(self) -> Iterator[Dependencies]:
        size = os.fstat(self._account).st_size
        yield from read_lines(os.pread(self._account, size, 0))


def _is_text(entry: object) -> bool:
    return isinstance(entry, str)
