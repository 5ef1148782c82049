"""Keeps what the target used, each thing as it was when it was used first. Runs in the worker; never imports torch.

It also runs in the Pythons of commands, each of which waits for its import.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.dependencies import Dependencies, line_of, read_lines
from oomdoctor.probing.dependency_paths import absolute, can_change, is_installed, is_known, is_relative, source
from oomdoctor.probing.looking import ABSENT, Look, look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

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

    def listed(self, path: object, way: Look = Look.LISTING) -> None:
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
        if name is not None and look(Look.CONTENT, name) != ABSENT:
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
        if f"{Look.SIGNATURE} {path}" in self._seen or f"{Look.CONTENT} {path}" in self._seen:
            return
        try:
            size = _stat(path).st_size
        except (OSError, ValueError):
            size = 0
        is_short = size <= self._left_bytes
        self._left_bytes -= size if is_short else 0
        self._look(Look.CONTENT if is_short else Look.SIGNATURE, path)

    def _look(self, way: Look, path: str) -> None:
        key = f"{way} {path}"
        if key not in self._seen:
            self._see(key, look(way, path))

    def _see(self, key: str, state: str) -> None:
        if len(self._seen) <= _MOST_SEEN:
            self._seen[key] = state
            self._tell(Dependencies(seen={key: state}))

    def _look_for_module(self, folder: str, name: str) -> None:
        """Look for it only where its folder has a name like it: a look takes a dozen questions, and most find none."""
        key = f"{Look.MODULE} {folder}{name}"
        beginnings = self._beginnings(folder)
        if key not in self._seen and beginnings is not None and name not in beginnings:
            self._see(key, ABSENT)
        else:
            self._look(Look.MODULE, folder + name)

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
