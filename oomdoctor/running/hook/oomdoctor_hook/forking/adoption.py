"""Make a fork of the server the process that a proxy has described: all but its code."""

# ruff: noqa: ANN401 - what libraries keep has no type here

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from . import streams

_SIGNALS: dict[str, Any] = {"ignored": signal.SIG_IGN, "default": signal.SIG_DFL, "python": signal.default_int_handler}


def adopt(process: dict[str, Any], descriptors: list[int], path: list[str], changes: dict[str, Any]) -> None:
    """Take over everything around the program.

    Args:
        process: As `identity.identify` describes it.
        descriptors: Of its three streams.
        path: `sys.path` without the program's own folder.
        changes: What the imports have done to the environment.
    """
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.umask(process["umask"])
    os.chdir(process["cwd"])
    os.sched_setaffinity(0, process["affinity"])
    _take_signals(process)
    _take_environment(process["environment"], changes)
    streams.renew(process["streams"])
    _take_names(process, path)
    _forget_the_server(process)


def _take_signals(process: dict[str, Any]) -> None:
    for number, name in process["signals"].items():
        # A handler that a library has installed is the program's.
        if signal.getsignal(number) in (*_SIGNALS.values(), None):
            try:
                signal.signal(number, _SIGNALS[name])
            except (OSError, ValueError):  # those that the C library keeps for itself
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, process["mask"])


def _take_environment(wanted: dict[str, str], changes: dict[str, Any]) -> None:
    environment = {**wanted, **{name: value for name, value in changes.items() if value is not None}}
    for name in list(os.environ):
        if name not in environment or changes.get(name, "") is None:
            del os.environ[name]
    for name, value in environment.items():
        if name not in os.environ or os.environ[name] != value:
            os.environ[name] = value


def _take_names(process: dict[str, Any], path: list[str]) -> None:
    sys.argv[:] = process["argv"]
    sys.path[:] = path
    sys.executable = process["executable"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = process["command_line"]


def _forget_the_server(process: dict[str, Any]) -> None:
    """Make anew what a process has of its own, and what was noted of the server's."""
    _reseed()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        setattr(multiprocessing, "ORIGINAL_DIR", process["cwd"])  # noqa: B010 - it has no type
        key = multiprocessing.AuthenticationString(os.urandom(32))
        multiprocessing.current_process()._config["authkey"] = key  # noqa: SLF001
    spawn = sys.modules.get("multiprocessing.spawn")
    if spawn is not None:
        spawn.set_executable(sys.executable)
    logging = sys.modules.get("logging")
    if logging is not None and hasattr(logging, "_startTime"):
        _restart_clock(logging)


def _restart_clock(logging: Any) -> None:
    import time  # noqa: PLC0415 - always imported, and of no use elsewhere

    # From Python 3.13 on it is in nanoseconds.
    logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()  # noqa: SLF001


def _reseed() -> None:
    """Two forks must draw other numbers, as two processes do. Python's own `random` sees to that itself."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()  # that of the CPU alone: CUDA's are made when CUDA is initialised
