"""Recorder of what a process uses: files, folders, modules and variables, each told when it is used first.

An audit hook sees what Python opens, lists and starts, a finder what it imports, and `os.environ` which variables are
asked for; what native code opens, the null GPU notes. Nobody sees what is only asked about, such as whether a file
exists. Only `oomdoctor check` asks for all this, in the processes that it starts itself.

Each line of the account is one JSON object: `{"python": executable}`, `{"seen": [key, state]}`, `{"variable": name}`,
`{"directory": path}`, `{"own": path, "is_new": ..., "is_temporary": ...}` or `{"unseen": reason}`. A key is a way to
look and an absolute path, such as `content /home/a/model.py`; `fingerprint` looks again.
"""

# ruff: noqa: PTH109, PTH110, PTH116, PTH119, PTH120 - pathlib takes longer to import
# ruff: noqa: ANN401 - arguments of audit events, and names of variables as text and as bytes

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import sys
import threading
from contextlib import contextmanager

from .dependencies import (
    AGENT_ROOT,
    LIBRARY,
    MOST_CONTENT_BYTES,
    PACKAGE_ROOTS,
    absolute,
    can_change,
    fingerprint,
    is_installed,
    is_standard,
    source,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import Any

ACCOUNT = "OOMDOCTOR_TRIAL_USES"
"""Variable with the path of the account of a command's processes."""
OPENED = ".opened"
"""End of the path of the file beside it, where the null GPU notes what native code opens."""
ALL_VARIABLES = "*"
"""Among the names of variables: the whole environment was read, for example to be copied."""

_MOST_SEEN = 100_000
_LONGEST_LINE = 1 << 16
_HIGH_DESCRIPTOR = 240  # out of the way of programs that expect theirs to be counted from 3

# --- programs ---------------------------------------------------------------------------------------------------------

_UNWATCHED = ("the target started `{}`", "the command started `{}`, which nobody watched")
_HOOKED = (ACCOUNT, "OOMDOCTOR_TRIAL_SOCKET", "PYTHONPATH", "LD_PRELOAD")
"""Variables without which a Python would not record."""
_PYTHON = re.compile(r"python[\d.]*")
_STARTERS = frozenset({"subprocess.py", "os.py", "<frozen os>"})
"""Files of the standard library through which programs are started, whoever wants them."""
_OWN_PURPOSES = ("/ctypes/util.py", "/platform.py", "/uuid.py", "/sysconfig.py")
_OF_THE_MACHINE = frozenset({"ldconfig", "lscpu", "lspci", "nvidia-smi", "uname"})
"""Programs that tell of the machine, whose state counts for no answer."""
_LAUNCHING = "/torch/distributed/"
_ASIDE = (_LAUNCHING, "/accelerate/commands/", "/accelerate/utils/", "/tqdm/utils.py")
"""Where all variables are read and none decides anything: they are copied for a program that is started, and which
records itself or else is said not to, or to be put back later, or those that are for progress bars are picked."""
_PROCESS_MODULES = frozenset({"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"})
"""Loaded only where a process is started that is no fork, and that no event tells of."""


def _loads_agent(options: Sequence[str]) -> bool:
    """Return whether Python's options leave it to `PYTHONPATH` and `site` to load the agent."""
    for option in options:
        if not option.startswith("-") or option in ("-c", "-m"):
            return True
        if not option.startswith(("-X", "-W")) and not {"E", "I", "S"}.isdisjoint(option):
            return False
    return True


def _value(environment: Mapping[Any, Any], name: str) -> str | None:
    value = environment.get(name)
    if value is None and environment is not os.environ:
        value = environment.get(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def _callers() -> Iterator[str]:
    """Files of the code that is recorded, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's callers
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame.f_code.co_filename
        frame = frame.f_back


def _asker() -> tuple[object, ...]:
    """The frame and the instruction that ask for a variable: one for a whole copy, which asks for all and for each."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the documented way to one's callers
    while frame is not None and frame.f_code.co_filename.endswith(_VIEWS):
        frame = frame.f_back
    # Not the frame itself, which would keep the program's tensors alive.
    return () if frame is None else (id(frame), frame.f_code, frame.f_lasti)


_VIEWS = ("_collections_abc>", "_collections_abc.py", "<frozen os>", "/os.py")


# --- the recorder ----------------------------------------------------------------------------------------------------


class DependencyRecorder:
    """Writer of an account of what this process uses, and the processes that are forked from it.

    Args:
        account: Descriptor of the account, open for appending.
        opened: Descriptor that the null GPU is to append the path of each opened file to, each with a zero byte.
    """

    def __init__(self, account: int, opened: int) -> None:
        self._account = account
        self._opened = opened
        self._told: set[object] = set()
        self._seen: set[str] = set()
        self._own: set[str] = set()
        self._left_bytes = MOST_CONTENT_BYTES
        self._copying: tuple[object, ...] = ()
        self._unwatched = _UNWATCHED[ACCOUNT in os.environ]
        self._hooked = {name: os.environ.get(name) for name in _HOOKED}
        self.busy = threading.local()

    def begin(self) -> None:
        """Record from now on, until the process ends."""
        self._tell({"python": sys.executable})
        note_files = getattr(ctypes.CDLL(None), "oomdoctor_null_note_files", None)
        if note_files is not None:  # the preloaded library's, on a null GPU
            note_files(ctypes.c_int(self._opened))
        os.register_at_fork(after_in_child=self._forked)
        for variables in (os.environ, os.environb):
            self._watch_variables(variables)
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._hear)

    def report(self) -> tuple[bytes, bytes]:
        """Add the source of every loaded module, and return the account and what native code opened."""
        with self.quietly() as is_target:
            for module in list(sys.modules.values()) if is_target else ():
                file = getattr(module, "__dict__", {}).get("__file__")  # `getattr` alone would wake lazy modules
                if isinstance(file, str):
                    self.read(file)
        account, opened = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in (self._account, self._opened))
        return account, opened

    @contextmanager
    def quietly(self) -> Iterator[bool]:
        """Enter a context whose uses are the recorder's own; it gives False inside another one."""
        is_first = not getattr(self.busy, "is_busy", False)
        self.busy.is_busy = True
        try:
            yield is_first
        except Exception as error:
            if not is_first:
                raise
            # What the program asked for has to go on.
            self.unseen(f"`{type(error).__name__}` when its use of something was to be recorded")
        finally:
            self.busy.is_busy = not is_first

    def unseen(self, why: str) -> None:
        """Say that something may have been used that cannot be seen from here."""
        self._tell({"unseen": why})

    def find_spec(self, name: str, path: Iterable[str] | None = None, target: object = None) -> None:  # noqa: ARG002 - Python calls it so
        """Find no module, and record where one of this name was looked for: a new file there may take its place."""
        with self.quietly():  # also where nothing else is recorded
            if name in _PROCESS_MODULES and ACCOUNT not in os.environ:
                self.unseen("the target started processes that are no forks")
            entries: Iterable[Any] = sys.path if path is None else path
            for entry in entries:
                folder = f"{self._path(entry)}/" if isinstance(entry, str) else ""  # Python passes others over, too
                if folder and can_change(folder) and not is_installed(folder):
                    self._look("module", folder + name.rpartition(".")[2])

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        handler = _EVENTS.get(event)
        if handler is not None:
            with self.quietly() as is_target:
                if is_target:
                    handler(self, args)

    def file_opened(self, args: Sequence[Any]) -> None:
        """Record a file that is opened: read, created, or emptied."""
        path, _, flags = args
        if flags & os.O_EXCL:
            self.created(path)
        elif flags & os.O_TRUNC:
            self.replaced(path)
        elif flags & os.O_ACCMODE != os.O_WRONLY and not isinstance(path, int):  # a descriptor was opened before
            self.read(path)

    def folder_listed(self, args: Sequence[Any]) -> None:
        """Record a folder whose names are read."""
        # What `import` looks for is recorded by name, and versions of packages are part of every question.
        if not next(_callers(), "").startswith(("<frozen importlib", f"{LIBRARY}/importlib/")):
            name = self._path("." if args[0] is None else args[0])
            if name is not None and can_change(f"{name}/") and not self._is_own(name):
                self._look("listing", name)

    def read(self, path: object) -> None:
        """Record a file that is read."""
        name = self._path(path)
        if name is None or not can_change(source(name)) or self._is_own(name):
            return
        name = source(name)
        if f"signature {name}" not in self._seen and f"content {name}" not in self._seen:
            size = os.stat(name).st_size if os.path.exists(name) else 0
            is_small = size <= self._left_bytes  # of what is larger, size and times have to do
            self._left_bytes -= size if is_small else 0
            self._look("content" if is_small else "signature", name)

    def created(self, path: object) -> None:
        """Record a file or folder that is to be created, which fails where there is one."""
        name = self._path(path)
        if name is not None and os.path.lexists(name):
            self.read(name)
        else:
            self.replaced(path)

    def replaced(self, path: object) -> None:
        """Record a file that is emptied or replaced: what is in it from now on is the process's own."""
        name = self._path(path)
        if name is not None and not self._is_own(name):
            self._own.add(name)
            maker = next(_callers(), "")
            is_temporary = maker.endswith("/tempfile.py")  # under a name that no other run has
            self._tell({"own": name, "is_new": not os.path.lexists(name), "is_temporary": is_temporary})

    def _is_own(self, path: str) -> bool:
        while self._own and path not in self._own and path != "/":
            path = os.path.dirname(path)
        return path in self._own

    def _path(self, path: object) -> str | None:
        if not isinstance(path, int) and not os.fsdecode(path).startswith("/"):  # type: ignore[arg-type]
            self._tell({"directory": os.getcwd()})
        return absolute(path)

    def _look(self, way: str, path: str) -> None:
        key = f"{way} {path}"
        if key not in self._seen and len(self._seen) <= _MOST_SEEN:
            self._seen.add(key)
            self._tell({"seen": [key, fingerprint(way, path)]})
        elif len(self._seen) > _MOST_SEEN:
            self.unseen(f"more than {_MOST_SEEN} files and folders")

    def _watch_variables(self, variables: Any) -> None:
        """Have `os.environ` tell: it encodes each name that is asked for, and decodes each when it goes over all."""
        encode, decode = variables.encodekey, variables.decodekey

        def encodekey(name: Any) -> Any:
            encoded = encode(name)
            self._variable(os.fsdecode(name), is_copy=_asker() == self._copying)
            return encoded

        def decodekey(name: Any) -> Any:
            self._copying = _asker()
            self._variable(ALL_VARIABLES)
            return decode(name)

        variables.encodekey, variables.decodekey = encodekey, decodekey

    def _variable(self, name: str, *, is_copy: bool = False) -> None:
        if is_copy or ("variable", name) in self._told:
            return
        with self.quietly() as is_target:
            asker = next((file for file in _callers() if not is_standard(file)), "")
            is_aside = name == ALL_VARIABLES and any(part in asker for part in _ASIDE)
            if is_target and not is_aside and not asker.startswith(AGENT_ROOT):
                self._tell({"variable": name})
                self._told.add(("variable", name))

    def program_started(self, args: Sequence[Any]) -> None:
        """Record a program that is started: what it reads is seen where it is a Python that records, too."""
        wanted_by = next((name for name in _callers() if os.path.basename(name) not in _STARTERS), "")
        # `subprocess.Popen` and `os.exec` have the program first, `os.spawn` a mode before it.
        words = (each[0] if isinstance(each, (list, tuple)) and each else each for each in args)
        found = (os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike)))
        name = next(found, "a program")
        # Python or torch may want a program for itself, rather than to launch what the command names.
        is_library = wanted_by.startswith(PACKAGE_ROOTS) and _LAUNCHING not in wanted_by
        is_own = wanted_by.endswith(_OWN_PURPOSES) if is_standard(wanted_by) else is_library
        if not (is_own or self._is_watched(args) or os.path.basename(name) in _OF_THE_MACHINE):
            self.unseen(self._unwatched.format(name))

    def _is_watched(self, program: Sequence[Any]) -> bool:
        """Return whether a program is this Python once more, with all that makes it load the agent."""
        path, words, variables = program[0], program[1:2], program[-1]
        if ACCOUNT not in os.environ or not isinstance(path, (str, bytes, os.PathLike)):
            return False
        if not words or isinstance(words[0], (str, bytes)):
            return False
        environment = os.environ if variables is None else variables
        if any(_value(environment, name) != value for name, value in self._hooked.items()):
            return False
        folder, name = os.path.split(os.fsdecode(path))
        is_own = os.path.normpath(folder) == os.path.normpath(os.path.dirname(sys.executable))
        is_python = is_own and _PYTHON.fullmatch(name) is not None
        return is_python and _loads_agent([os.fsdecode(word) for word in words[0]][1:])

    def _forked(self) -> None:
        self.busy = threading.local()

    def _tell(self, line: Mapping[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"
        if data not in self._told:
            self._told.add(data)
            os.write(self._account, data)


_EVENTS: Mapping[str, Callable[[DependencyRecorder, Sequence[Any]], None]] = {
    "open": DependencyRecorder.file_opened,
    "os.listdir": DependencyRecorder.folder_listed,
    "os.scandir": DependencyRecorder.folder_listed,
    "os.mkdir": lambda recorder, args: recorder.created(args[0]),
    "os.rename": lambda recorder, args: recorder.replaced(args[1]),
    "os.link": lambda recorder, args: recorder.created(args[1]),
    "os.symlink": lambda recorder, args: recorder.created(args[1]),
    "ctypes.dlopen": lambda recorder, args: recorder.read(args[0]) if "/" in str(args[0]) else None,
    "sqlite3.connect": lambda recorder, args: recorder.read(args[0]),
    "subprocess.Popen": DependencyRecorder.program_started,
    "os.system": DependencyRecorder.program_started,
    "os.posix_spawn": DependencyRecorder.program_started,
    "os.exec": DependencyRecorder.program_started,
    "os.spawn": DependencyRecorder.program_started,
}


def record_worker() -> DependencyRecorder:
    """Begin to record this process, which says later what it used (`report`)."""
    account, opened = (os.memfd_create(f"oomdoctor-{name}") for name in ("account", "opened"))
    for descriptor in (account, opened):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    recorder = DependencyRecorder(account, opened)
    recorder.begin()
    return recorder


def record_command_process() -> None:
    """Begin to record this process of a command, whose account outlives it: in the end it is killed.

    The first line of the account names the Python whose packages are known; another one says that it took part.
    """
    path = os.environ[ACCOUNT]
    account = _descriptor(path)
    try:
        wanted = json.loads(os.pread(account, _LONGEST_LINE, 0).split(b"\n", 1)[0])
        problem = f"`{sys.executable}` took part, which is another Python than oomdoctor's"
        if (wanted["prefix"], wanted["version"]) == (sys.prefix, sys.version):
            problem = ""
            DependencyRecorder(account, _descriptor(path + OPENED)).begin()
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is recorded then
        problem = f"`{type(error).__name__}` when the recording of what the command reads began"
    if problem:
        os.write(account, json.dumps({"unseen": problem}).encode() + b"\n")


def _descriptor(path: str) -> int:
    low = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    os.close(low)
    return high
