"""File writes: paths that the program opens to write, makes or renames, so that a probe can say what it left.

Python's audit events tell of them, and the files that torch and safetensors write past Python are told by their own
functions.
"""

# ruff: noqa: ANN401 - what programs hand over has no type here
# ruff: noqa: PTH100, PTH109, PTH111, PTH112, PTH118 - pathlib takes longer to import than the agent

from __future__ import annotations

import os
import sys

from .guard import guarded

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_PATHS = 1000
_PASSING_PARTS = ("/__pycache__/", "/site-packages/", "/dist-packages/")
_SYSTEM = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108 - named, not used
_CACHES = (".cache", ".triton", ".nv", ".config/matplotlib")


class FileWrites:
    """Paths that the program has opened to write, made or renamed.

    Files in folders for temporary files, caches and installations are not told, unless the program was started in or
    below such a folder: then the files below that place are told all the same.

    Args:
        tell: Called once with each path, absolute.
    """

    def __init__(self, tell: Callable[[str], Any]) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._here = "/"
        self._around: tuple[str, ...] = ()
        self._elsewhere: tuple[str, ...] = ()

    def watch(self) -> None:
        """Listen from now on; an audit hook cannot be taken away again."""
        folders = _passing_folders()
        self._here = os.path.join(os.getcwd(), "")
        self._around = tuple(folder for folder in folders if self._here.startswith(folder))
        self._elsewhere = tuple(folder for folder in folders if not self._here.startswith(folder))
        sys.addaudithook(self._audit_hook())

    def watch_torch(self, torch: Any) -> None:
        """Listen to `torch.save`, whose file is written past Python."""
        writer = torch.serialization._open_zipfile_writer_file  # noqa: SLF001
        original, note = writer.__init__, self._note

        def __init__(self: Any, name: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            note(name)
            original(self, name, *arguments, **named)

        writer.__init__ = __init__

    def watch_safetensors(self) -> None:
        """Listen to safetensors' own writer, which is no Python."""
        modules: list[Any] = [sys.modules.get("safetensors" + part) for part in ("", ".torch", ".numpy")]
        original = modules[0].serialize_file

        def serialize_file(tensors: Any, filename: Any, *arguments: Any, **named: Any) -> Any:
            self._note(filename)
            return original(tensors, filename, *arguments, **named)

        for module in modules:
            if getattr(module, "serialize_file", None) is original:
                module.serialize_file = serialize_file

    def _audit_hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """Return the hook; Python calls it for every file that it reads, so it is quick where nothing is written."""
        note = self._note
        find: Any = {
            "open": lambda given: note(given[0]) if given[2] & _WRITING else None,
            "os.mkdir": lambda given: None if os.path.isdir(given[0]) else note(given[0]),
            **dict.fromkeys(("os.rename", "os.link", "os.symlink"), lambda given: note(given[1])),
            **dict.fromkeys(("os.truncate", "sqlite3.connect"), lambda given: note(given[0])),
        }.get

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            react = find(event)
            if react is not None:
                try:  # noqa: SIM105 - `contextlib` would be imported for it
                    react(arguments)
                except Exception:  # noqa: BLE001, S110 - here an error would forbid the program what it is doing
                    pass

        return hook

    @guarded
    def _note(self, named: Any) -> None:
        if isinstance(named, int) or len(self._told) >= _MOST_PATHS:
            return
        path = os.path.abspath(os.fsdecode(named))
        is_elsewhere = path.startswith(self._elsewhere) or any(part in path + "/" for part in _PASSING_PARTS)
        is_elsewhere = is_elsewhere or (path.startswith(self._around) and not path.startswith(self._here))
        if path not in self._told and not is_elsewhere:
            self._told.add(path)
            self._tell(path)


def _passing_folders() -> list[str]:
    temporary = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    home = os.path.expanduser("~")
    caches = [os.path.join(home, name) for name in _CACHES]
    named = [os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR")]
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    folders = {os.path.join(os.path.abspath(name), "") for name in [*temporary, *caches, *named, *prefixes] if name}
    folders.update(os.path.join(name, "") for name in _SYSTEM)
    return sorted(folders - {"/"})
