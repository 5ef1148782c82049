"""Exception hooks: errors that nobody handles, in the main thread, in others, in child processes.

On the way to `sys.exit`.

Until memory runs out for the first time nothing is replaced, so a program finds `sys.excepthook` and `sys.exit` as
they are without us. Then they are wrapped, around whatever the program has put there by that time. A hook that the
program installs later still is passed by: when the process ends, Python's own record of what it died of is looked at.
"""

# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import atexit
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from .guard import guarded
from .oom_errors import find_oom

if TYPE_CHECKING:
    from collections.abc import Callable


class EndState:
    """How this process is about to end.

    Attributes:
        torch: The module, once it is imported.
        expected: Whether memory has run out, so that the places where a program ends are watched.
        written: Whether a report was written; the first counts.
        prepared: A report that waits for the process to really end.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.expected = False
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked; what is wrapped stays so."""
        self.written = False
        self.prepared: dict[str, Any] | None = None


END_STATE = EndState()
reset_end = END_STATE.reset


def watch_end(torch: Any) -> None:
    """Look at what the process died of, once it ends."""
    END_STATE.torch = torch
    atexit.register(guarded(_at_exit))


def wrap_ends() -> None:
    """Watch the places where a program may end of an error."""
    if END_STATE.expected:
        return
    END_STATE.expected = True
    _wrap_excepthook()
    _wrap_thread_hook()
    wrap_exit(_note_exit)


@guarded
def report_death(error: BaseException | None, ending: str) -> None:
    """Write a report where `error`, which nobody handles, says that memory ran out.

    Args:
        error: What ended the program, a thread or a child process.
        ending: Which of these.
    """
    if END_STATE.torch is None or END_STATE.written or _is_interactive():
        return
    oom = find_oom(error)
    if oom is None or error is None:
        return
    from . import crash_report

    END_STATE.written = True
    crash_report.write_report(crash_report.collect_report(END_STATE.torch, error, oom, ending), END_STATE.torch)


def _wrap_excepthook() -> None:
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, traceback: Any) -> None:
        report_death(error, "exception")
        before(kind, error, traceback)

    sys.excepthook = excepthook


def _wrap_thread_hook() -> None:
    before = threading.excepthook

    def excepthook(arguments: Any) -> None:
        report_death(arguments.exc_value, "thread")
        before(arguments)

    threading.excepthook = excepthook


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


@guarded
def _note_exit(status: Any) -> None:
    """Keep what is being handled when the program asks to leave; it may still be talked out of it.

    Text alone is kept: to hold the error would hold its frames and all the tensors in them.
    """
    error = sys.exc_info()[1]
    oom = None if status in (None, 0) else find_oom(error)
    if oom is not None and error is not None and not END_STATE.written:
        from . import crash_report

        END_STATE.prepared = crash_report.collect_report(END_STATE.torch, error, oom, "exit")


def _at_exit() -> None:
    # `last_exc` is there from 3.12 on. Both are set by Python itself, before it calls whatever hook there is.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    report_death(error, "exception")
    prepared = END_STATE.prepared
    if prepared is None or END_STATE.written or _is_interactive():
        return
    from . import crash_report, run_agent

    if prepared["steps_done"] == run_agent.STEPS.done:  # training did not go on after all
        END_STATE.written = True
        crash_report.write_report(prepared, END_STATE.torch)


def _is_interactive() -> bool:
    """Whether somebody sits at a prompt, where an error ends nothing."""
    return hasattr(sys, "ps1")


def watch_children(process: Any, ended: Callable[[BaseException | None], None]) -> None:
    """Listen to how a child's function ends.

    Args:
        process: The module `multiprocessing.process`.
        ended: Called in the child with what the function raised, or None where it returned.
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
