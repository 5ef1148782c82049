"""The end of a program in a fork: all that it can see of its own end, and then no more.

Python ends by taking every module apart. In a fork that would first copy each page of all that the server has imported,
which takes longer than the imports have; and nothing of a library's is left to be done then. So the last of the
functions that run at exit, ours, ends the process: after the program's threads, its exit functions and its own modules.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from typing import Any

from . import describe

_CANNOT_FLUSH = 120  # as Python ends then
_ROOTS = describe.library_roots()


class Ending:
    """How this process ends.

    Attributes:
        code: Its exit code; None where Python shall end it, as it does in the server.
        libraries: Modules that are not the program's.
    """

    code: int | None = None
    libraries: frozenset[str] = frozenset()


def watch() -> None:
    """Be the first to be registered, and so the last to be called."""
    atexit.register(_leave)


def returned() -> None:
    """The program's code has run to its end."""
    Ending.code = 0


def asked(code: Any) -> None:  # noqa: ANN401 - it may be anything
    """The program has raised `SystemExit(code)`; Python prints what is no number."""
    Ending.code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def failed(error: BaseException) -> None:
    """An error has ended the program. An interrupt is left to Python, which ends by its signal."""
    Ending.code = None if isinstance(error, KeyboardInterrupt) else 1


def _leave() -> None:
    if Ending.code is None:
        return
    code = Ending.code
    _take_apart()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - it may be closed, or None
            code = code if getattr(stream, "closed", stream is None) else _CANNOT_FLUSH
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _take_apart() -> None:
    """Let go of what the program's own modules hold: its objects' `__del__` runs, and files are written and closed."""
    own = [module for name, module in reversed(list(sys.modules.items())) if _is_own(name, module)]
    for module in [sys.modules.get("__main__"), *own]:
        try:
            namespace = vars(module)
            for name in [name for name in namespace if name != "__builtins__"]:
                namespace[name] = None
        except Exception:  # noqa: BLE001, S112 - it is not a module
            continue


def _is_own(name: str, module: Any) -> bool:  # noqa: ANN401 - as above
    file = getattr(module, "__file__", None)
    return name not in Ending.libraries and file is not None and not describe.is_installed(file, _ROOTS)
