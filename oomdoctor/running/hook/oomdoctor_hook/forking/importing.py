"""Import what the program will, and leave out what a fork does not survive.

Each module is watched while it runs. Where one starts a thread, the whole stack of modules that were being imported is
left out, and the process starts over without them: what is half imported cannot be taken back.
"""

# ruff: noqa: ANN401 - loaders and modules have no type here

from __future__ import annotations

import functools
import importlib
import os
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from typing import TYPE_CHECKING, Any

from . import describe, hazards

if TYPE_CHECKING:
    from collections.abc import Callable


class _LeftOutError(BaseException):
    """No `Exception`: a module that does without another where that fails would then be another module."""


class Importer:
    """Imports modules under watch.

    Attributes:
        excluded: Names that are not imported.
        doomed: Names that have to be left out, because they did something or need what is left out.
        reason: What was found.
        failed: Names whose import failed.
        imported: How many were imported.
    """

    def __init__(self, excluded: set[str]) -> None:
        self.excluded = excluded
        self.doomed: set[str] = set()
        self.reason = ""
        self.failed: list[str] = []
        self.imported = 0
        self._stack: list[str] = []
        self._opener: list[str] = []
        self._watch = hazards.Watch()
        self._roots = describe.library_roots()
        self._originals: list[tuple[Any, str, Any]] = []

    def run(self, names: list[str]) -> None:
        """Import `names` in their order, up to the first thing that a fork would not survive."""
        self._begin()
        try:
            for name in names:
                if self._is_hopeless(name):
                    continue
                self._import(name)
                if self.reason:
                    return
        finally:
            self._end()
        self.reason = self.reason or self._watch.found_at_end()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """As a finder: stop the import of what is left out, and of all that needs it."""
        del path, target
        if name in self.excluded:
            self.doomed.update(self._stack)
            raise _LeftOutError(name)

    def _is_hopeless(self, name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:length]) in self.excluded for length in range(1, len(parts) + 1))

    def _import(self, name: str) -> None:
        if name in sys.modules:
            self.imported += 1
            return
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - the program will see it, in its own process
            self.failed.append(name)
        else:
            self.imported += 1

    def _begin(self) -> None:
        sys.meta_path.insert(0, self)
        for loader in (SourceFileLoader, ExtensionFileLoader):
            self._wrap(loader, "exec_module", lambda module: module.__spec__)
        self._wrap(ExtensionFileLoader, "create_module", lambda spec: spec)

    def _end(self) -> None:
        sys.meta_path.remove(self)
        for owner, name, original in reversed(self._originals):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def _wrap(self, loader: Any, name: str, spec_of: Callable[[Any], Any]) -> None:
        run = getattr(loader, name)
        self._originals.append((loader, name, vars(loader).get(name)))

        @functools.wraps(run)
        def watched(own: Any, subject: Any) -> Any:
            with self._running(spec_of(subject)):
                return run(own, subject)

        setattr(loader, name, watched)

    def _running(self, spec: Any) -> _Running:
        return _Running(self, spec)

    def enter(self, spec: Any) -> None:
        """A module begins to run."""
        self._stack.append(spec.name)
        if not describe.is_installed(spec.origin, self._roots):
            self.doomed.update(self._stack)
            self._stack.pop()
            raise _LeftOutError(spec.name)

    def leave(self) -> None:
        """A module has run; see what it did."""
        if not self.reason:
            self._blame(self._watch.found(), self._stack)
            self._follow_descriptors()
        if self._stack.pop() == "torch":
            self._originals += spare_cuda(sys.modules.get("torch"))
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


class _Running:
    def __init__(self, importer: Importer, spec: Any) -> None:
        self._importer = importer
        self._spec = spec

    def __enter__(self) -> None:
        self._importer.enter(self._spec)

    def __exit__(self, *_: object) -> None:
        self._importer.leave()


def spare_cuda(torch: Any) -> list[tuple[Any, str, Any]]:
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
    torch._C._cuda_getDeviceCount = functools.lru_cache(maxsize=None)(lambda: _in_fork(count))  # noqa: SLF001
    return [(torch._C, "_cuda_getDeviceCount", count)]  # noqa: SLF001


def _in_fork(count: Callable[[], int]) -> int:
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
    return int(answer or b"0")
