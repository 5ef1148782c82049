"""File writes: paths that the program opens to write, makes or renames, each told once.

Python's audit events tell of it, and what torch and safetensors write past Python is told by their own functions. What
goes to places for passing things is not told: temporary files, caches, the installation.
"""


# ruff: noqa: ANN401 - what programs hand over has no type here
# ruff: noqa: PTH100, PTH109, PTH111, PTH112, PTH118 - pathlib takes longer to import than the hook

from __future__ import annotations

import os
import sys

from .channel import CHANNEL
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
    """What has been told already.

    Attributes:
        told: Absolute paths.
        elsewhere: Folders whose files are not told.
        around: Such folders that the program was started in or below.
        here: Where it was started; files below it are told all the same.
    """

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.elsewhere: tuple[str, ...] = ()
        self.around: tuple[str, ...] = ()
        self.here = "/"


FILE_WRITES = FileWrites()


def watch() -> None:
    """Listen from now on; an audit hook cannot be taken away again."""
    folders = _passing_folders()
    FILE_WRITES.here = os.path.join(os.getcwd(), "")
    FILE_WRITES.around = tuple(folder for folder in folders if FILE_WRITES.here.startswith(folder))
    FILE_WRITES.elsewhere = tuple(folder for folder in folders if not FILE_WRITES.here.startswith(folder))
    sys.addaudithook(_make_hook())


def watch_torch(torch: Any) -> None:
    """Listen to `torch.save`, whose file is written past Python."""
    writer = torch.serialization._open_zipfile_writer_file  # noqa: SLF001
    original = writer.__init__

    def __init__(self: Any, name: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        _note(name)
        original(self, name, *arguments, **named)

    writer.__init__ = __init__


def watch_safetensors() -> None:
    """Listen to safetensors' own writer, which is no Python."""
    modules: list[Any] = [sys.modules.get("safetensors" + part) for part in ("", ".torch", ".numpy")]
    original = modules[0].serialize_file

    def serialize_file(tensors: Any, filename: Any, *arguments: Any, **named: Any) -> Any:
        _note(filename)
        return original(tensors, filename, *arguments, **named)

    for module in modules:
        if getattr(module, "serialize_file", None) is original:
            module.serialize_file = serialize_file


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    """The hook: quick where an event is none of these, since Python calls it for every file that it reads."""
    note = _note

    def opened(arguments: tuple[Any, ...]) -> None:
        if arguments[2] & _WRITING:
            note(arguments[0])

    def made(arguments: tuple[Any, ...]) -> None:
        if not os.path.isdir(arguments[0]):
            note(arguments[0])

    def named_second(arguments: tuple[Any, ...]) -> None:
        note(arguments[1])

    def named_first(arguments: tuple[Any, ...]) -> None:
        note(arguments[0])

    find = {
        "open": opened,
        "os.mkdir": made,
        "os.rename": named_second,
        "os.link": named_second,
        "os.symlink": named_second,
        "os.truncate": named_first,
        "sqlite3.connect": named_first,
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
def _note(named: Any) -> None:
    if isinstance(named, int) or len(FILE_WRITES.told) >= _MOST_PATHS:
        return
    path = os.path.abspath(os.fsdecode(named))
    if path in FILE_WRITES.told or _is_elsewhere(path):
        return
    FILE_WRITES.told.add(path)
    CHANNEL.send({"event": "wrote", "path": path}, even_if_quiet=True)


def _is_elsewhere(path: str) -> bool:
    if path.startswith(FILE_WRITES.elsewhere) or any(part in path + "/" for part in _PASSING_PARTS):
        return True
    return path.startswith(FILE_WRITES.around) and not path.startswith(FILE_WRITES.here)


def _passing_folders() -> list[str]:
    temporary = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    home = os.path.expanduser("~")
    caches = [os.path.join(home, name) for name in _CACHES]
    named = [os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR")]
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    folders = {os.path.join(os.path.abspath(name), "") for name in [*temporary, *caches, *named, *prefixes] if name}
    folders.update(os.path.join(name, "") for name in _SYSTEM)
    return sorted(folders - {"/"})
