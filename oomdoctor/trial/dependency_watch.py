"""Watch on what the target uses: files, directories, modules and variables of the environment.

Python tells an audit hook of what is opened and listed. It tells nobody of what is only asked about, such as whether a
file exists, and of variables; so the functions that answer are wrapped. What native code opens, the null GPU tells of.

Python tells an audit hook of what is opened and listed. It tells nobody of what is only asked about, such as whether a
file exists, and of variables; so the functions that answer are wrapped. What native code opens, the null GPU tells of.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.trial.dependencies import ALL_VARIABLES, Fingerprint
from oomdoctor.trial.dependency_recorder import Recorder, is_known, is_standard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType, ModuleType

    from oomdoctor.trial.dependencies import Dependencies


_STARTERS: Final = ("subprocess.py", "os.py", "<frozen os>")
"""Files of the standard library through which programs are started, whoever wants them."""

_PROCESS_MODULES: Final = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
"""Loaded only where a process was started that is no fork, and that no event tells of."""


def watch() -> Recorder:
    """Record, from now until the process ends, what the code in it uses."""
    from oomdoctor.engines.null_gpu.control import is_null_gpu, note_files  # noqa: PLC0415 - long to import

    recorder = Recorder()
    if is_null_gpu():
        note_files(recorder.opened)
    watch_for(recorder)
    return recorder


def watch_for(recorder: Recorder) -> None:
    """Tell a recorder of all that Python does from now on; of native code only the null GPU knows."""
    sys.meta_path.insert(0, _Finder(recorder))
    for name in ("stat", "lstat", "access"):
        _wrap(name, lambda args, kwargs: recorder.read(_asked_path(args, kwargs)), recorder)
    for name in ("getcwd", "getcwdb"):
        _wrap(name, lambda _args, _kwargs: _directory_asked(recorder), recorder)
    _watch_variables(recorder)
    sys.addaudithook(_hook(recorder))


def report(recorder: Recorder) -> Dependencies:
    """What was used so far."""
    if any(name in sys.modules for name in _PROCESS_MODULES):
        recorder.escaped("the target started processes that are no forks")
    return recorder.report()


# --- audit events ----------------------------------------------------------------------------------------------------


def _hook(recorder: Recorder) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        handler = _EVENTS.get(event)
        if handler is None:
            return
        with recorder.quietly() as is_target:
            if is_target:
                handler(recorder, args)

    return hook


def _opened(recorder: Recorder, args: Sequence[Any]) -> None:
    path, _, flags = args
    if flags & os.O_EXCL:
        recorder.created(path)
    elif flags & os.O_TRUNC:
        recorder.replaced(path)
    elif flags & os.O_ACCMODE != os.O_WRONLY and not isinstance(path, int):  # a descriptor was opened before
        recorder.read(path)


def _listed(recorder: Recorder, args: Sequence[Any]) -> None:
    lister = next(callers(), "")
    if lister.endswith("importlib/metadata/__init__.py"):
        recorder.listed(args[0], Fingerprint.PACKAGES)
    # What `import` looks for is recorded by name; that it reads whole directories for it is its own affair.
    elif not lister.startswith("<frozen importlib"):
        recorder.listed(args[0])


def _started(recorder: Recorder, args: Sequence[Any]) -> None:
    recorder.started(next((name for name in callers() if Path(name).name not in _STARTERS), ""), args)


_EVENTS: Mapping[str, Callable[[Recorder, Sequence[Any]], None]] = MappingProxyType(
    {
        "open": _opened,
        "os.listdir": _listed,
        "os.scandir": _listed,
        "os.mkdir": lambda recorder, args: recorder.created(args[0]),
        "os.rename": lambda recorder, args: recorder.replaced(args[1]),
        "os.link": lambda recorder, args: recorder.created(args[1]),
        "os.symlink": lambda recorder, args: recorder.created(args[1]),
        "ctypes.dlopen": lambda recorder, args: recorder.read(args[0]) if "/" in str(args[0]) else None,
        "sqlite3.connect": lambda recorder, args: recorder.read(args[0]),
        **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn"), _started),
    }
)


def callers() -> Iterator[str]:
    """Files of the code that is watched, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's callers
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _THROUGH:
            yield name
        frame = frame.f_back


_THROUGH: Final = frozenset({__file__, contextlib.__file__})


# --- modules ---------------------------------------------------------------------------------------------------------


class _Finder:
    """Finds no module, and records what was looked for, and where."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Iterable[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG002 - Python calls it so
        """Part of the import protocol."""
        # Also where nothing else is recorded: a file of the project may take the place of whatever is imported.
        with self._recorder.quietly():
            self._recorder.imported(name, sys.path if path is None else path)


# --- functions of `os` -----------------------------------------------------------------------------------------------


def _wrap(name: str, note: Callable[[tuple[Any, ...], dict[str, Any]], None], recorder: Recorder) -> None:
    original = getattr(os, name)

    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        # An import of torch's compiler asks ten thousand times about a thousand files.
        if not (args and type(args[0]) is str and args[0] in recorder.asked):
            with recorder.quietly() as is_target:
                if is_target:
                    note(args, kwargs)
        return original(*args, **kwargs)

    setattr(os, name, wrapper)
    for functions in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in functions:
            functions.add(wrapper)


def _directory_asked(recorder: Recorder) -> None:
    """The working directory was asked for; torch asks while it is imported, and makes nothing of it."""
    if not is_known(next((name for name in callers() if not is_standard(name)), "")):
        recorder.used_working_directory()


def _asked_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - a path in any form
    path, folder = args[0] if args else kwargs["path"], kwargs.get("dir_fd")
    return path if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / os.fsdecode(path)


# --- variables -------------------------------------------------------------------------------------------------------


def _watch_variables(recorder: Recorder) -> None:
    """`get`, `in` and `os.getenv` come down to getting an item, and `items`, `keys` and `copy` to going over all."""
    kind: Any = type(os.environ)
    get_item, iterate = kind.__getitem__, kind.__iter__
    copying: tuple[object, ...] = ()

    def __getitem__(self: Any, key: Any) -> Any:  # noqa: ANN401, N807 - as the original
        with recorder.quietly() as is_target:
            if is_target and _place_of_asking() != copying:
                recorder.variable(os.fsdecode(key))
        return get_item(self, key)

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: ANN401, N807 - as the original
        nonlocal copying
        copying = _place_of_asking()
        with recorder.quietly() as is_target:
            if is_target:
                recorder.variable(ALL_VARIABLES)
        return iter(iterate(self))

    kind.__getitem__, kind.__iter__ = __getitem__, __iter__


def _place_of_asking() -> tuple[object, ...]:
    """The frame and the instruction that ask: the same for a whole copy, which asks for all and then for each."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the documented way to one's callers
    while frame is not None and frame.f_code.co_filename.endswith(_VIEWS):
        frame = frame.f_back
    # Not the frame itself, which would keep the target's tensors alive.
    return () if frame is None else (id(frame), frame.f_code, frame.f_lasti)


_VIEWS: Final = ("_collections_abc>", "_collections_abc.py")
