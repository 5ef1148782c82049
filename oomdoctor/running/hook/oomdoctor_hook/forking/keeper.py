"""The process between the server and a program: it reports the program's end, and leaves nothing where nobody waits."""

# ruff: noqa: ANN401 - a socket's type is not at hand in older Pythons' way

from __future__ import annotations

import os
import select
from typing import Any

from . import descendants, wire


def keep(connection: Any, descriptors: list[int]) -> None:
    """Start a process for the program, and return in it alone.

    Args:
        connection: To the proxy. When it closes, the program is killed, and all that it has started.
        descriptors: The program's streams, which are the program's alone.
    """
    descendants.sleep_at_ends()
    descendants.adopt_orphans()
    descendants.die_with_parent()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        connection.close()
        _begin(keeper)
        return
    try:
        for descriptor in descriptors:
            os.close(descriptor)
        _watch(connection, pid)
    finally:
        os._exit(0)


def _begin(keeper: int) -> None:
    os.setsid()
    descendants.die_with_parent()
    if os.getppid() != keeper:  # it ended before that
        os._exit(1)


def _watch(connection: Any, pid: int) -> None:
    """Wait for the end of the program or of its proxy, whichever is first."""
    waking = descendants.wake_at_an_end()
    try:
        wire.send(connection, {"pid": pid})
        status = _wait(connection, waking, pid)
        if status is None:
            descendants.kill_descendants()
        else:
            wire.send(connection, {"status": status})
    except OSError:
        descendants.kill_descendants()


def _wait(connection: Any, waking: int, pid: int) -> Any:
    while True:
        ended = descendants.reap()
        if pid in ended:
            return ended[pid]
        readable, _, _ = select.select([connection, waking], [], [])
        if connection in readable:
            return None
        os.read(waking, 1 << 12)
