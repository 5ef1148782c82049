"""The process between the probe and its worker: it makes sure that nothing outlives the probe.

It holds the read end of a pipe, the lifeline, whose write end only the probe has. When the probe ends for any reason,
SIGKILL included, the kernel closes that end; the guardian sees it and kills the worker and everything that the user's
code started. As a subreaper it becomes the parent of every orphan below it, so that not even a daemon escapes.

Usage: guardian LIFELINE_FD REPORT_FD KEPT_FDS DOOMED [COMMAND...]; standard library only, because every probe waits for
its start. KEPT_FDS are those that the command inherits, with commas; DOOMED is a directory that is removed in the end,
where it is still there, or empty.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Run COMMAND until it ends or the lifeline is cut, kill what is left, and report how it ended.

    Args:
        arguments: File descriptors of the lifeline and of the report pipe, those that the command inherits, the
            directory to remove, then the command.
    """
    lifeline, report, doomed = int(arguments[0]), int(arguments[1]), arguments[3]
    for fd in {lifeline, report} - set(map(int, filter(None, arguments[2].split(",")))):
        os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's own
    started: list[subprocess.Popen[bytes]] = []  # kept: one that is dropped looks after its process itself

    def start() -> int:
        started.append(subprocess.Popen(arguments[4:], close_fds=False, restore_signals=True))
        return started[0].pid

    guard(start if arguments[4:] else None, lifeline, report)
    if doomed:
        shutil.rmtree(doomed, ignore_errors=True)
    return 0


def guard(start: Callable[[], int] | None, lifeline: int, report: int) -> None:
    """Start a worker, report how it ends, and kill everything below this process once it does or the lifeline is cut.

    Args:
        start: Starts the worker as a child of this process and returns its pid; None where there is none to start.
        lifeline: Descriptor that is readable once the probe is gone or lets go.
        report: Descriptor that the end of the worker is written to.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, not SIG_IGN: that one the worker and all that it starts would inherit.
        signal.signal(number, lambda *_: None)
    worker = None if start is None else start()
    if worker is None:
        select.select([lifeline], [], [])
    elif _wait_for_end(worker, lifeline):
        _report(report, os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    kill_descendants()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill every process below this one, and wait until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.005)


def _wait_for_end(pid: int, lifeline: int) -> bool:
    """Wait until the worker ends (True) or the lifeline is cut (False)."""
    worker = os.pidfd_open(pid)
    readable, _, _ = select.select([worker, lifeline], [], [])
    return worker in readable


def _report(report: int, return_code: int) -> None:
    with contextlib.suppress(OSError):
        os.write(report, b"\n" + json.dumps({"event": "died", "return_code": return_code}).encode() + b"\n")


def _descendants(root: int) -> list[int]:
    parents = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found: list[int] = []
    for pid in parents:
        ancestor: int | None = pid
        while ancestor and (ancestor := parents.get(ancestor)) and ancestor != root:
            pass
        if ancestor == root:
            found.append(pid)
    return found


def _parent(process: Path) -> int | None:
    """Return the parent's pid; None for a process that has just gone."""
    try:
        # The name in parentheses may itself hold spaces and parentheses.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
