"""Serve: the fork server's start and its loop, and the process that reaps each program."""

# ruff: noqa: ANN401 - older Pythons name a socket's type in another way

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import admission, importing, proxy
from .program import Program, ProgramEnd, become_program

if TYPE_CHECKING:
    from .program import ProgramCall

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0
_LIBRARY = ctypes.CDLL(None, use_errno=True)

_DESCRIPTORS = 3
_MESSAGE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_BACKLOG = 64

_MOST_STARTS = 8
_OWN_VARIABLES = {
    # Their threads would be started at import, and would be lost in a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "GOTO_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    # PyTorch's compiler would start its processes when it is imported, not when it has something to compile.
    "TORCH_WARM_POOL": "0",
}
_STARTS = "OOMDOCTOR_FORK_STARTS"
_LEFT_OUT = "OOMDOCTOR_FORK_LEFT_OUT"


def serve(arguments: list[str], had: dict[str, Any]) -> ProgramCall | None:
    """Import, answer, and serve.

    Args:
        arguments: The server's own: itself, the socket's path, the description's path.
        had: The names of `__main__` at the start.

    Returns:
        The program's code, in a process that has become a program; None in the server, once it is no longer needed.
    """
    end = ProgramEnd()
    die_with_parent()
    with suppress(OSError):  # it leads a group already
        os.setsid()
    description = json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
    interpreter, path = proxy.interpreter(), list(sys.path)
    answers = _take_output()
    wanted = description["environment_at_torch"]
    os.environ.update({name: value for name, value in _OWN_VARIABLES.items() if name not in wanted})
    reads = importing.EnvironmentReads()
    reads.begin()
    importer = importing.Importer(set(filter(None, os.environ.pop(_LEFT_OUT, "").split(","))))
    importer.run(description["modules"])
    reads.end()
    reason = _why_not(importer, answers)
    if reason:
        _answer_parent(answers, {"ready": False, "reason": reason})
        return None
    server = admission.Server(interpreter, description["environment"], path, reads.names, reads.changes())
    loop = ServerLoop(arguments[1], server)
    left_out = sorted({*importer.failed, *importer.excluded})
    _answer_parent(answers, {"ready": True, "imported": importer.imported, "left_out": left_out})
    found = loop.run()
    return None if found is None else become_program(found, server, end, had)


def _take_output() -> int:
    """Keep standard output for the answer alone; what imports print is the first trial's to show."""
    answers = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)
    return answers


def _why_not(importer: importing.Importer, answers: int) -> str:
    """Return why no fork of this process can be trusted; empty where it can. The process may start over for that."""
    starts = int(os.environ.pop(_STARTS, "0"))
    if "torch" in importer.doomed:
        return importer.reason or "torch needs a module that a fork would not survive"
    if importer.doomed - importer.excluded:
        if starts >= _MOST_STARTS:
            return importer.reason
        os.environ[_LEFT_OUT] = ",".join(sorted(importer.excluded | importer.doomed))
        os.environ[_STARTS] = str(starts + 1)
        os.dup2(answers, 1)
        os.execv(sys.executable, proxy.command_line())  # noqa: S606 - the same program again
    if importer.reason:
        return importer.reason
    if "torch" not in sys.modules:
        return "torch could not be imported"
    return "CUDA would not work in a fork" if importing.is_poisoned() else ""


def _answer_parent(answers: int, answer: dict[str, Any]) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")
    os.close(answers)


# --- the loop --------------------------------------------------------------------------------------------------------


class ServerLoop:
    """Listens on a socket in the file system, until that is taken away."""

    def __init__(self, path: str, server: admission.Server) -> None:
        self._path = path
        self._pid = os.getpid()
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)
        self._waking = wake_on_child_exit()
        self._reapers: set[int] = set()
        self._waiting: list[socket.socket] = []

    def run(self) -> Program | None:
        """Serve. This returns a program in the process that shall become it, and None in the server at its end."""
        while os.path.exists(self._path):  # noqa: PTH110 - a text
            watched: list[Any] = [self._listener, self._waking]
            readable, _, _ = select.select(watched, [], [], _LOOK_SECONDS)
            if self._waking in readable:
                os.read(self._waking, 1 << 12)
            self._reapers -= reap_children().keys()
            self._tell_waiting()
            program = self._accept() if self._listener in readable else None
            if program is not None:
                return program
        kill_descendants()
        return None

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_MESSAGE_SECONDS)
        descriptors: list[int] = []
        try:
            process, descriptors = proxy.receive_with_descriptors(connection, _DESCRIPTORS)
            if process == {}:
                self._waiting.append(connection.dup())
                self._tell_waiting()
            elif process is not None:
                return self._answer(connection, process, descriptors)
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            pass  # it sees the connection close, and runs by itself
        finally:
            connection.close()
            for descriptor in descriptors if os.getpid() == self._pid else ():
                os.close(descriptor)
        return None

    def _answer(self, connection: socket.socket, process: dict[str, Any], descriptors: list[int]) -> Program | None:
        reason = admission.refusal(process, self._server)
        if reason or len(descriptors) != _DESCRIPTORS:
            print(f"refused `{' '.join(process['argv'])}`: {reason}", file=sys.stderr, flush=True)  # noqa: T201
            proxy.send(connection, {"refused": reason})
            return None
        pid = os.fork()
        if pid:
            self._reapers.add(pid)
            return None
        for held in (self._listener, *self._waiting):
            held.close()
        os.close(self._waking)
        reap_program(connection, descriptors)
        return Program(process, descriptors)

    def _tell_waiting(self) -> None:
        if self._reapers:
            return
        while self._waiting:
            with self._waiting.pop() as connection, suppress(OSError):
                connection.sendall(b"idle\n")


# --- the process that reaps a program --------------------------------------------------------------------------------


def reap_program(connection: Any, descriptors: list[int]) -> None:
    """Start a process for the program, and return in it alone.

    Args:
        connection: To the proxy. When it closes, the program is killed, and all that it has started.
        descriptors: The program's streams, which are the program's alone.
    """
    write = signal.set_wakeup_fd(-1)  # which `wake_on_child_exit` set in the server
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if write >= 0:
        os.close(write)
    _LIBRARY.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans below it become its children
    die_with_parent()
    reaper = os.getpid()
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.setsid()
        die_with_parent()
        if os.getppid() != reaper:  # it ended before that
            os._exit(1)
        return
    try:
        for descriptor in descriptors:
            os.close(descriptor)
        _watch_program(connection, pid)
    finally:
        os._exit(0)


def _watch_program(connection: Any, pid: int) -> None:
    """Wait for the end of the program or of its proxy, whichever is first."""
    waking = wake_on_child_exit()
    try:
        proxy.send(connection, {"pid": pid})
        ended = reap_children()
        while pid not in ended:
            readable, _, _ = select.select([connection, waking], [], [])
            if connection in readable:
                kill_descendants()
                return
            os.read(waking, 1 << 12)
            ended = reap_children()
        proxy.send(connection, {"status": ended[pid]})
    except OSError:
        kill_descendants()


# --- descendants -----------------------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_descendants() -> None:
    """Kill every process below this one, and wait until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        pids = _descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap_children()
        time.sleep(0.002)


def reap_children() -> dict[int, int]:
    """Return the wait statuses of the children that have ended since, by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = status


def wake_on_child_exit() -> int:
    """Return a descriptor that can be read from whenever a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _descendants(root: int) -> list[int]:
    parents = {int(name): _parent_pid(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - quick
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {root})


def _parent_pid(name: str) -> int | None:
    """Return the parent's id; None for a process that has just gone."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - quick
            # The name in parentheses may itself hold spaces and parentheses.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None
