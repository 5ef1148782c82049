"""Processes below this one: to kill them all, to die with the parent, and to notice that one has ended."""

from __future__ import annotations

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0
_LIBRARY = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    _LIBRARY.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill every process below this one, and wait until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        pids = _descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            _kill(pid)
        reap()
        time.sleep(0.002)


def reap() -> dict[int, int]:
    """The children that have ended since: their ids and wait statuses."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = status


def wake_at_an_end() -> int:
    """A descriptor that can be read from whenever a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def sleep_at_ends() -> None:
    """Take back what `wake_at_an_end` did to this process's signals."""
    write = signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if write >= 0:
        os.close(write)


def _kill(pid: int) -> None:
    try:  # noqa: SIM105 - the import of `contextlib` is not worth it
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def _descendants(root: int) -> list[int]:
    parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - quick
    return [pid for pid in parents if _is_below(pid, root, parents)]


def _is_below(pid: int, root: int, parents: dict[int, int | None]) -> bool:
    ancestor = parents.get(pid)
    while ancestor and ancestor != root:
        ancestor = parents.get(ancestor)
    return ancestor == root


def _parent(name: str) -> int | None:
    """The parent's id; None for a process that has just gone."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - quick
            # The name in parentheses may itself hold spaces and parentheses.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None
