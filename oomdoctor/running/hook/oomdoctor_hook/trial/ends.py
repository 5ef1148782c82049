"""How a process ends that does not get to the last step: of an error that nobody handles, or by itself.

One that ends because memory ran out stands still then, as after the last step: the trial is over, and what the program
has registered with `atexit` shall not write into it.
"""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import Any

from .. import errors
from ..endings import wrap_exit
from ..evidence import full_traceback
from ..guard import guarded
from . import report
from .channel import CHANNEL
from .device import DEVICE
from .steps import STEPS


class End:
    """What is known of this process's end.

    Attributes:
        torch: The module, once it is imported.
        is_told: Whether the last word is said.
        prepared: The error that was being handled when the program asked to leave, and the steps done by then.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.process = os.getpid()
        self.is_told = False
        self.prepared: tuple[dict[str, Any], int] | None = None


END = End()
reset = END.reset


def watch(torch: Any) -> None:
    """Tell how this process ends."""
    END.torch = torch
    wrap_exit(guarded(_note_exit))
    # Called before `atexit`, and before threads are waited for. In Python's own hands, and not in 3.8.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(guarded(_at_shutdown))
    atexit.register(guarded(_at_exit))


def child_ended(error: BaseException | None) -> None:
    """A child process of multiprocessing has run its function."""
    if END.torch is not None and not CHANNEL.quiet:
        _tell(None if error is None else _described(error))


def _note_exit(status: Any) -> None:
    """Keep what is being handled when the program asks to leave; it may still be talked out of it.

    Text alone is kept: to hold the error would hold its frames and all the tensors in them.
    """
    error = sys.exc_info()[1]
    if status not in (None, 0) and error is not None and not isinstance(error, SystemExit):
        END.prepared = _described(error), STEPS.done


def _at_shutdown() -> None:
    error = _died_of()
    if error is not None:
        _tell(error)
        if DEVICE.ooms and os.getpid() == END.process:
            _stand_still()


def _at_exit() -> None:
    _tell(_died_of())


def _died_of() -> dict[str, Any] | None:
    # `last_exc` is there from 3.12 on. Both are set by Python itself, before it calls whatever hook there is.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        return _described(error)
    if END.prepared is not None and END.prepared[1] == STEPS.done:  # training did not go on after all
        return END.prepared[0]
    return None


def _stand_still() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or the program's own
            stream.flush()
    CHANNEL.stand_still()


def _tell(error: dict[str, Any] | None) -> None:
    if END.is_told or STEPS.is_over:
        return
    END.is_told = True
    report.send(END.torch, "exit" if error is None else "error", error)
    CHANNEL.flush()


def _described(error: BaseException) -> dict[str, Any]:
    links = [
        {"types": [_name(kind) for kind in type(link).__mro__], "text": errors.text_of(link)}
        for link in errors.walk(error)
    ]
    return {"links": links, "traceback": guarded(full_traceback)(error) or ""}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
