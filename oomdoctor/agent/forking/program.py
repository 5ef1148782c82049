"""Turn a fork of the server into a program: its surroundings, its streams, its code and its end.

Python ends by taking every module apart. In a fork that would first copy each page of all that the server has imported,
which takes longer than the imports have; and nothing of a library's is left to be done then. So the last of the
functions that run at exit, ours, ends the process: after the program's threads, its exit functions and its own modules.
"""

# ruff: noqa: ANN401 - streams are of several types, and what libraries keep has none here

from __future__ import annotations

import atexit
import ctypes
import io
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import admission

if TYPE_CHECKING:
    from collections.abc import Callable

    from .admission import Server


_NAMES = ("stdin", "stdout", "stderr")
_MODES = ("r", "w", "w")
_RETIRED_STREAMS: list[Any] = []
_SIGNALS: dict[str, Any] = {"ignored": signal.SIG_IGN, "default": signal.SIG_DFL, "python": signal.default_int_handler}
_CANNOT_FLUSH = 120  # as Python ends then
_ROOTS = admission.library_roots()
_AGENT_VARIABLES = ("OOMDOCTOR_RUN_DIRECTORY", "OOMDOCTOR_TRIAL_SOCKET")


class Program(NamedTuple):
    """A process to become.

    Attributes:
        process: As `proxy.identify` describes it.
        descriptors: Of its streams.
    """

    process: dict[str, Any]
    descriptors: list[int]


def renew_streams(wanted: list[list[Any]]) -> None:
    """Replace the streams; who holds the old ones goes on writing to the same descriptors.

    Args:
        wanted: For each, what `proxy.identify` says of it.
    """
    for number, (name, mode) in enumerate(zip(_NAMES, _MODES)):  # noqa: B905 - not in 3.8
        encoding, errors, line_buffering, write_through, buffered = wanted[number]
        below: Any = io.open(number, f"{mode}b", -1 if buffered else 0, closefd=False)  # noqa: SIM115, UP020 - it stays
        (below.raw if buffered else below).name = f"<{name}>"
        new = io.TextIOWrapper(
            below, encoding, errors, newline="\n", line_buffering=line_buffering, write_through=write_through
        )
        new.mode = mode  # type: ignore[misc]
        old = getattr(sys, name)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        _retire_stream(old, new)


def _retire_stream(old: Any, new: Any) -> None:
    """Let nothing lie in the old stream, and give the new one to the handlers that libraries made of it."""
    if hasattr(old, "reconfigure") and old.writable():
        old.reconfigure(line_buffering=True)
    _RETIRED_STREAMS.append(old)
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other list
        handler = reference() if callable(reference) else reference
        if getattr(handler, "stream", None) is old:
            handler.stream = new


def adopt_identity(process: dict[str, Any], descriptors: list[int], path: list[str], changes: dict[str, Any]) -> None:
    """Take over everything around the program.

    Args:
        process: As `proxy.identify` describes it.
        descriptors: Of its three streams.
        path: `sys.path` without the program's own folder.
        changes: Changes that the imports have made to the environment.
    """
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(process["umask"])
    os.chdir(process["cwd"])
    os.sched_setaffinity(0, process["affinity"])
    for number, name in process["signals"].items():
        # A handler that a library has installed is the program's.
        if signal.getsignal(number) in (*_SIGNALS.values(), None):
            with suppress(OSError, ValueError):  # those that the C library keeps for itself
                signal.signal(number, _SIGNALS[name])
    signal.pthread_sigmask(signal.SIG_SETMASK, process["mask"])
    _take_environment(process["environment"], changes)
    renew_streams(process["streams"])
    sys.argv[:] = process["argv"]
    sys.path[:] = path
    sys.executable = process["executable"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = process["command_line"]
    _forget_the_server(process)


def _take_environment(wanted: dict[str, str], changes: dict[str, Any]) -> None:
    environment = {**wanted, **{name: value for name, value in changes.items() if value is not None}}
    for name in list(os.environ):
        if name not in environment or changes.get(name, "") is None:
            del os.environ[name]
    for name, value in environment.items():
        if name not in os.environ or os.environ[name] != value:
            os.environ[name] = value


def _forget_the_server(process: dict[str, Any]) -> None:
    """Make anew what a process has of its own, and what libraries noted of the server."""
    # Two forks must draw other numbers, as two processes do. Python's own `random` sees to that itself.
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()  # that of the CPU alone: CUDA's are made when CUDA is initialised
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        setattr(multiprocessing, "ORIGINAL_DIR", process["cwd"])  # noqa: B010 - it has no type
        key = multiprocessing.AuthenticationString(os.urandom(32))
        multiprocessing.current_process()._config["authkey"] = key  # noqa: SLF001
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(sys.executable)
    clock: Any = logging
    if hasattr(clock, "_startTime"):  # in nanoseconds from Python 3.13 on
        clock._startTime = time.time_ns() if isinstance(clock._startTime, int) else time.time()  # noqa: SLF001


class ProgramEnd:
    """The end of a program's process, with all that the program can see of its own end, and then no more.

    Attributes:
        libraries: Modules that are not the program's.
    """

    def __init__(self) -> None:
        self.libraries: frozenset[str] = frozenset()
        self._code: int | None = None  # None where Python shall end the process, as it does in the server
        atexit.register(self._end_process)  # the first exit function to be registered is the last to be called

    def returned(self) -> None:
        """Note that the program's code has run to its end."""
        self._code = 0

    def exited(self, code: Any) -> None:
        """Note that the program has raised `SystemExit(code)`; Python prints what is no number."""
        self._code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1

    def failed(self, error: BaseException) -> None:
        """Note that an error has ended the program. An interrupt is left to Python, which ends by its signal."""
        self._code = None if isinstance(error, KeyboardInterrupt) else 1

    def _end_process(self) -> None:
        if self._code is None:
            return
        code = self._code
        # What the program's own modules hold is let go of: its objects' `__del__` runs, files are written and closed.
        own = [module for name, module in reversed(list(sys.modules.items())) if self._is_own(name, module)]
        for module in [sys.modules.get("__main__"), *own]:
            with suppress(Exception):  # it is not a module
                namespace = vars(module)
                for name in [name for name in namespace if name != "__builtins__"]:
                    namespace[name] = None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001 - it may be closed, or None
                code = code if getattr(stream, "closed", stream is None) else _CANNOT_FLUSH
        ctypes.CDLL(None).fflush(None)
        os._exit(code)

    def _is_own(self, name: str, module: Any) -> bool:
        file = getattr(module, "__file__", None)
        return name not in self.libraries and file is not None and not admission.is_installed(file, _ROOTS)


class ProgramCall(NamedTuple):
    """A program's code, ready to run.

    Attributes:
        function: The function to call.
        arguments: Its arguments.
        end: Told how it ended.
        hide_frames: Called with the caller's file where that raises.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    end: ProgramEnd
    hide_frames: Callable[[str, ProgramEnd], None]


def become_program(found: Program, server: Server, end: ProgramEnd, had: dict[str, Any]) -> ProgramCall:
    """Make this process the program's.

    Args:
        found: The process to become.
        server: The server that this is a fork of.
        end: The end that this process will have.
        had: The names of `__main__` at the start.
    """
    process = found.process
    adopt_identity(process, found.descriptors, server.path, server.changes)
    split = admission.split_command_line(process["command_line"], len(process["argv"]))
    if split is None:  # the server has looked at it
        raise RuntimeError("an unusual command line")
    _start_agent()
    _, target, is_module = split
    end.libraries = frozenset(sys.modules)
    function, arguments = admission.prepare_main(target, is_module=is_module, had=had)
    package = __name__.rpartition(".")[0]
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]
    return ProgramCall(function, arguments, end, hide_frames)


def _start_agent() -> None:
    """Start the agent, as `sitecustomize` does in a process that runs by itself."""
    if not any(os.environ.get(name) for name in _AGENT_VARIABLES):
        return
    from .. import install  # noqa: PLC0415 - where it is wanted

    socket = os.environ.pop("OOMDOCTOR_FORK_SOCKET", None)  # it has been handed over already
    with suppress(Exception):  # a crash of ours must not be seen
        install()
    if socket is not None:
        os.environ["OOMDOCTOR_FORK_SOCKET"] = socket


def hide_frames(file: str, end: ProgramEnd) -> None:
    """Show the error that ends the program without the agent's frames below it; Python does all the rest itself.

    Args:
        file: The file that calls the program.
        end: Told where the program's own hook asks to leave.
    """
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, traceback: Any) -> None:
        folder = file.rpartition("/")[0].rpartition("/")[0]
        while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(folder):
            traceback = traceback.tb_next
        sys.excepthook = before
        sys.last_traceback = traceback
        try:
            before(kind, error.with_traceback(traceback), traceback)
        except SystemExit as leaving:
            end.exited(leaving.code)
            raise

    sys.excepthook = excepthook
