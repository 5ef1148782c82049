"""Import modules in the fork server, and leave out those that a fork does not survive.

Each module is watched while it runs. Where one starts a thread, the whole stack of modules that were being imported is
left out, and the process starts over without them: what is half imported cannot be taken back.

A thread does not come over a fork, and what it held stays held; descriptors would be shared; a child process would have
two parents; and CUDA does not survive a fork at all.

Variables of the environment that are read meanwhile are noted: a process whose environment differs in others imports
the same modules to the same effect.
"""

# ruff: noqa: ANN401 - loaders and modules have no type here

from __future__ import annotations

import functools
import importlib
import os
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from typing import TYPE_CHECKING, Any

from . import admission

if TYPE_CHECKING:
    from collections.abc import Callable


_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")
_DESCRIPTORS = "/proc/self/fd"
_LINKS_WITHOUT_THREADS = 2  # of the folder that has one more for each thread


class HazardWatch:
    """Compares with what the process had before its imports."""

    def __init__(self) -> None:
        # What cannot be read is the descriptor that listed the folder; the next that is opened has its number.
        self._descriptors = frozenset(name for name in _descriptors() if _link_target(name))

    def found(self) -> str:
        """Return the first hazard that was not there before; empty where a fork is still safe."""
        if os.stat("/proc/self/task").st_nlink - _LINKS_WITHOUT_THREADS > 1:  # noqa: PTH116 - after thousands of modules
            return "started a thread"
        is_initialised = getattr(sys.modules.get("torch.cuda"), "_initialized", False)
        return "initialised CUDA" if is_initialised else ""

    def keeps_descriptors(self) -> bool:
        """Return whether a descriptor is open that was not before; while a module still runs it may yet be closed."""
        return any(_link_target(name) not in ("", *_HARMLESS) for name in _descriptors() - self._descriptors)

    def found_at_end(self) -> str:
        """Return the first hazard of all, also of those that take longer to see."""
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there is no process below this one
            return "keeps a descriptor open" if self.keeps_descriptors() else self.found()
        return "started a process"


def is_poisoned() -> bool:
    """Return whether a fork of this process could not use CUDA any more, as PyTorch sees it; only a fork can tell."""
    is_bad = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_isInBadFork", bool)  # False in older ones
    return bool(_in_fork(lambda: int(bool(is_bad())), otherwise=1))


def _descriptors() -> set[str]:
    return set(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - after each of thousands of modules


def _link_target(name: str) -> str:
    """Return the file of a descriptor; empty where it has gone."""
    try:
        return os.readlink(f"{_DESCRIPTORS}/{name}")  # noqa: PTH115 - as above
    except OSError:
        return ""


class _LeftOutError(BaseException):
    """No `Exception`: a module that does without another where that fails would then be another module."""


class Importer:
    """Imports modules under watch.

    Attributes:
        excluded: Names that are not imported.
        doomed: Names that have to be left out, because they did something or need what is left out.
        reason: The hazard that was found, and the module that caused it.
        failed: Names whose import failed.
        imported: Number of modules that were imported.
    """

    def __init__(self, excluded: set[str]) -> None:
        self.excluded = excluded
        self.doomed: set[str] = set()
        self.reason = ""
        self.failed: list[str] = []
        self.imported = 0
        self._stack: list[str] = []
        self._opener: list[str] = []
        self._watch = HazardWatch()
        self._roots = admission.library_roots()
        self._originals: list[tuple[Any, str, Any]] = []

    def run(self, names: list[str]) -> None:
        """Import `names` in their order, up to the first thing that a fork would not survive."""
        sys.meta_path.insert(0, self)
        for loader in (SourceFileLoader, ExtensionFileLoader):
            self._wrap(loader, "exec_module", lambda module: module.__spec__)
        self._wrap(ExtensionFileLoader, "create_module", lambda spec: spec)
        try:
            for name in names:
                parts = name.split(".")
                if any(".".join(parts[:length]) in self.excluded for length in range(1, len(parts) + 1)):
                    continue
                self._import(name)
                if self.reason:
                    return
        finally:
            sys.meta_path.remove(self)
            for owner, name, original in reversed(self._originals):
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
        self.reason = self._watch.found_at_end()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """As a finder: stop the import of what is left out, and of all that needs it."""
        del path, target
        if name in self.excluded:
            self.doomed.update(self._stack)
            raise _LeftOutError(name)

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - the program will see it, in its own process
            self.failed.append(name)
        else:
            self.imported += 1

    def _wrap(self, loader: Any, name: str, spec_of: Callable[[Any], Any]) -> None:
        run = getattr(loader, name)
        self._originals.append((loader, name, vars(loader).get(name)))

        @functools.wraps(run)
        def watched(own: Any, subject: Any) -> Any:
            self._enter(spec_of(subject))
            try:
                return run(own, subject)
            finally:
                self._leave()

        setattr(loader, name, watched)

    def _enter(self, spec: Any) -> None:
        """A module begins to run."""
        self._stack.append(spec.name)
        if not admission.is_installed(spec.origin, self._roots):
            self.doomed.update(self._stack)
            self._stack.pop()
            raise _LeftOutError(spec.name)

    def _leave(self) -> None:
        """A module has run; see what it did."""
        if not self.reason:
            self._blame(self._watch.found(), self._stack)
            self._follow_descriptors()
        if self._stack.pop() == "torch":
            self._originals += count_devices_in_fork(sys.modules.get("torch"))
        if self.reason:
            raise _LeftOutError(self.reason)

    def _blame(self, what: str, stack: list[str]) -> None:
        if what and not self.reason:
            self.reason = f"`{stack[-1]}` {what}"
            self.doomed.update(stack)

    def _follow_descriptors(self) -> None:
        """Remember where one was opened first, and wait whether it is closed before the whole import is done."""
        if not self._watch.keeps_descriptors():
            self._opener = []
            return
        self._opener = self._opener or list(self._stack)
        if len(self._stack) == 1:
            self._blame("keeps a descriptor open", self._opener)


def count_devices_in_fork(torch: Any) -> list[tuple[Any, str, Any]]:
    """Let a fork count the devices: a process that has counted them has a CUDA that its forks cannot use.

    Libraries ask `torch.cuda.is_available()` when they are imported.

    Args:
        torch: The module.

    Returns:
        What has to be put back where: owner, name and value.
    """
    count = getattr(getattr(torch, "_C", None), "_cuda_getDeviceCount", None)
    if count is None:
        return []
    torch._C._cuda_getDeviceCount = functools.lru_cache(maxsize=None)(lambda: _in_fork(count, otherwise=0))  # noqa: SLF001
    return [(torch._C, "_cuda_getDeviceCount", count)]  # noqa: SLF001


def _in_fork(count: Callable[[], int], otherwise: int) -> int:
    """Return the number that a fork of this process returns; `otherwise` where it fails."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(count()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:  # noqa: PTH123 - a descriptor
        answer = answers.read()
    os.waitpid(pid, 0)
    return int(answer) if answer else otherwise


_Environ = type(os.environ)


class EnvironmentReads:
    """Notes the names that Python code asks `os.environ` for, between `begin` and `end`.

    Attributes:
        names: Names of variables that have been read, set or deleted.
        written: Names of those that have been set or deleted, or given a value where they had none.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.written: set[str] = set()

    def begin(self) -> None:
        """Listen."""
        names, written = self.names, self.written

        class Noting(_Environ):  # type: ignore[valid-type,misc]
            def __getitem__(self, key: str) -> str:
                if isinstance(key, str):
                    names.add(key)
                value: str = super().__getitem__(key)
                return value

            def __setitem__(self, key: str, value: str) -> None:
                written.add(key)
                super().__setitem__(key, value)

            def __delitem__(self, key: str) -> None:
                written.add(key)
                super().__delitem__(key)

            def setdefault(self, key: str, value: str) -> str:
                written.add(key)
                result: str = super().setdefault(key, value)
                return result

        os.environ.__class__ = Noting

    def end(self) -> None:
        """Leave `os.environ` as it was."""
        os.environ.__class__ = _Environ

    def changes(self) -> dict[str, str | None]:
        """Return the changes that the imports made to the environment: values by name, None for one that is gone."""
        return {name: os.environ.get(name) for name in self.written}
