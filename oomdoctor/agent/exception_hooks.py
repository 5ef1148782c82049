"""Exception hooks: errors that nobody handles, in any thread, in child processes and on the way to `sys.exit`.

They are wrapped around whatever the program has put there. A hook that the program installs later is passed by: when
the process ends, Python's own record of the error that it died of (`last_error`) is looked at.
"""

# ruff: noqa: ANN401 - errors and processes as Python hands them over

from __future__ import annotations

import functools
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_TRACEBACK = 200000


def watch_children(process: Any, ended: Callable[[BaseException | None], None]) -> None:
    """Listen to how the functions of multiprocessing's children end: a child prints their errors past every hook.

    Args:
        process: The module `multiprocessing.process`.
        ended: Called in the child with the error that the function raised, or None where it returned.
    """
    original = process.BaseProcess._bootstrap  # noqa: SLF001

    @functools.wraps(original)
    def bootstrap(self: Any, *arguments: Any, **named: Any) -> Any:
        _listen(self, ended)
        return original(self, *arguments, **named)

    process.BaseProcess._bootstrap = bootstrap  # noqa: SLF001


@guarded
def _listen(child: Any, ended: Callable[[BaseException | None], None]) -> None:
    run = child.run

    def watched() -> Any:
        try:
            result = run()
        except BaseException as error:
            ended(error)
            raise
        ended(None)
        return result

    child.run = watched


def wrap_hooks(note: Callable[[BaseException, str], Any]) -> None:
    """Call `note` with an error that ends the main thread (`exception`) or another, before the program's own hooks."""
    in_main, in_thread = sys.excepthook, threading.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        note(error, "exception")
        in_main(kind, error, trace)

    def thread_hook(arguments: Any) -> None:
        note(arguments.exc_value, "thread")
        in_thread(arguments)

    sys.excepthook, threading.excepthook = excepthook, thread_hook


def wrap_exit(note: Callable[[Any], Any]) -> None:
    """Call `note` with the status each time that the program asks to leave."""
    before = sys.exit

    def leave(status: Any = None, /) -> Any:
        note(status)
        return before(status)

    leave.__name__ = leave.__qualname__ = "exit"
    leave.__module__ = "sys"
    leave.__doc__ = before.__doc__
    sys.exit = leave


def last_error() -> BaseException | None:
    """Return the error that ended the main thread, as Python keeps it; None for none.

    `last_exc` is there from 3.12 on. Both are set by Python itself, before it calls whatever hook there is.
    """
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def is_interactive() -> bool:
    """Return whether somebody sits at a prompt, where an error ends nothing."""
    return hasattr(sys, "ps1")


def full_traceback(error: BaseException) -> str:
    """Return an error as Python prints it; the middle of a very long one is left out."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) <= _LONGEST_TRACEBACK:
        return text
    half = _LONGEST_TRACEBACK // 2
    return f"{text[:half]}\n...\n{text[-half:]}"
