"""How a fork of the server becomes a program, and how what it dies of is shown as if nothing of ours were below."""

# ruff: noqa: ANN401 - errors and tracebacks as Python hands them over

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from . import adoption, ending, main

if TYPE_CHECKING:
    from collections.abc import Callable

    from .admission import Server
    from .serving import Program

_HOOKED = ("OOMDOCTOR_RUN_DIRECTORY", "OOMDOCTOR_TRIAL_SOCKET")


class Call(NamedTuple):
    """A program's code, ready to run.

    Attributes:
        function: What to call.
        arguments: And with what.
        ending: The module that is told how it ended.
        hide_frames: Called with the caller's file where that raises.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ending: Any
    hide_frames: Callable[[str], None]


def become(found: Program, server: Server, had: dict[str, Any]) -> Call:
    """Make this process the program's.

    Args:
        found: The process that is to be.
        server: What this is a fork of.
        had: What `__main__` has in it at the start.
    """
    process = found.process
    adoption.adopt(process, found.descriptors, server.path, server.changes)
    split = main.split_command_line(process["command_line"], len(process["argv"]))
    if split is None:  # the server has looked at it
        raise RuntimeError("an unusual command line")
    _start_hook()
    _, target, is_module = split
    ending.Ending.libraries = frozenset(sys.modules)
    function, arguments = main.prepare(target, is_module=is_module, had=had)
    _leave_modules()
    return Call(function, arguments, ending, hide_frames)


def _start_hook() -> None:
    """What `sitecustomize` does in a process that runs by itself."""
    if not any(os.environ.get(name) for name in _HOOKED):
        return
    import oomdoctor_hook  # type: ignore[import-not-found]  # noqa: PLC0415 - where it is wanted

    socket = os.environ.pop("OOMDOCTOR_FORK_SOCKET", None)  # it has been handed over already
    try:
        oomdoctor_hook.install()
    except Exception:  # noqa: BLE001, S110 - a crash of ours must not be seen
        pass
    finally:
        if socket is not None:
            os.environ["OOMDOCTOR_FORK_SOCKET"] = socket


def _leave_modules() -> None:
    package = __name__.rpartition(".")[0]
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        del sys.modules[name]


def hide_frames(file: str) -> None:
    """Show what the program dies of without the frames of `file`; Python does all the rest itself.

    Args:
        file: Where the program is called.
    """
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, traceback: Any) -> None:
        folder = file.rpartition("/")[0]
        while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(folder):
            traceback = traceback.tb_next
        sys.excepthook = before
        sys.last_traceback = traceback
        try:
            before(kind, error.with_traceback(traceback), traceback)
        except SystemExit as leaving:
            ending.asked(leaving.code)
            raise

    sys.excepthook = excepthook
