"""A process under a guardian, the guardian, and the pipes to the process.

The guardian stands between the probe and its worker and makes sure that nothing outlives the probe: it holds the read
end of a pipe, the lifeline, whose write end only the probe has. When the probe ends for any reason, SIGKILL included,
the kernel closes that end; the guardian sees it and kills the worker and everything that the user's code started. As a
subreaper it becomes the parent of every orphan below it, so that not even a daemon escapes.

This file is also the guardian's program, standard library only, because every probe waits for its start.

Usage: process LIFELINE_FD REPORT_FD KEPT_FDS DOOMED [COMMAND...]; KEPT_FDS are those that the command inherits, with
commas; DOOMED is a directory that is removed in the end, where it is still there, or empty.
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
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


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


def offer_to_oom_killer() -> None:
    """Make this process the OOM killer's first choice; without effect where the kernel has no such file."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def kill_descendants() -> None:
    """Kill every process below this one, and wait until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := _descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
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


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


_CHUNK = 65536
_KEPT_BYTES = 65536
_LONGEST_LINE = 500
_TAIL_LINES = 15


class OutputTail:
    """Drains a pipe in a thread, so that its writer never blocks, and keeps the end.

    Attributes:
        write_fd: For the child's stdout and stderr; close it here once the child has it.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._chunks: deque[bytes] = deque()
        self._kept_bytes = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self, lines: int) -> str:
        """Return the last `lines` lines, each cut to its end where it is long."""
        kept = b"".join(tuple(self._chunks)).decode(errors="replace").splitlines()
        cut = (line if len(line) <= _LONGEST_LINE else f"...{line[-_LONGEST_LINE:]}" for line in kept[-lines:])
        return "\n".join(cut)

    def tail(self) -> str | None:
        """Return its last lines, with a heading; None where nothing was written."""
        text = self.text(_TAIL_LINES)
        return f"the end of its output:\n{text}" if text else None

    def close(self) -> None:
        """Wait for the writers to end; call after they have."""
        self._thread.join(timeout=1)

    def _drain(self) -> None:
        while chunk := os.read(self._read_fd, _CHUNK):
            self._chunks.append(chunk)
            self._kept_bytes += len(chunk)
            while self._kept_bytes - len(self._chunks[0]) >= _KEPT_BYTES:
                self._kept_bytes -= len(self._chunks.popleft())
        os.close(self._read_fd)


_END_SECONDS = 15.0


class GuardedProcess:
    """A command under a guardian, in a session of its own.

    Args:
        command: The program and its arguments; none to have a directory removed, and nothing else.
        environment: Its whole environment.
        report_fd: Where the guardian says how the command ended, as one line of JSON; inherited too where it is among
            `pass_fds`.
        pass_fds: Descriptors that the command inherits.
        stdout_fd: Where its standard output goes; None to keep the end of it with that of its standard error.
        directory: Where it runs; None for here.
        doomed: A directory that the guardian removes in the end, where it is still there.
    """

    def __init__(  # noqa: PLR0913 - what a process is started with
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        report_fd: int,
        *,
        pass_fds: Sequence[int] = (),
        stdout_fd: int | None = None,
        directory: Path | None = None,
        doomed: Path | None = None,
    ) -> None:
        lifeline_read, self._lifeline = os.pipe()
        self._output = OutputTail()
        # By its path and without site-packages: it needs only the standard library, and every probe waits for it.
        guardian = [sys.executable, "-P", "-S", __file__]
        kept = ",".join(map(str, pass_fds))
        self._guardian = subprocess.Popen(
            [*guardian, str(lifeline_read), str(report_fd), kept, str(doomed or ""), *command],
            pass_fds=sorted({report_fd, lifeline_read, *pass_fds}),
            stdin=subprocess.DEVNULL,
            stdout=self._output.write_fd if stdout_fd is None else stdout_fd,
            stderr=self._output.write_fd,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        for fd in (lifeline_read, self._output.write_fd):
            os.close(fd)

    @property
    def is_open(self) -> bool:
        """Return whether it was not ended yet."""
        return self._guardian.returncode is None

    def close(self) -> None:
        """End the command and everything that it started; returns when nothing of it is left."""
        if not self.is_open:
            return
        os.close(self._lifeline)
        try:
            self._guardian.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self._output.close()

    def tail(self) -> str | None:
        """Return the end of its output, with a heading; None where it printed nothing. Call after it has ended."""
        self._output.close()
        return self._output.tail()


@contextmanager
def channel_to_child(stop: CancelToken | None = None) -> Iterator[tuple[WorkerChannel, tuple[int, int]]]:
    """Make a channel to a process that is started in the block.

    Args:
        stop: Ends a wait from another thread.

    Yields:
        The channel, and the descriptors that the process inherits: of what it is asked, and of its answers.
    """
    questions_read, questions_write = os.pipe()
    answers_read, answers_write = os.pipe()
    channel = WorkerChannel(answers_read, questions_write, stop)
    try:
        yield channel, (questions_read, answers_write)
    except BaseException:
        channel.close()
        raise
    finally:
        os.close(questions_read)
        os.close(answers_write)


class CancelToken:
    """Token that ends every probe that was handed it, a waiting one included, once it is set.

    Python interrupts only its main thread, and a thread that waits for its worker would wait on.

    Args:
        parent: Another, which sets this one too; None for none. This one leaves it as it is.

    Attributes:
        fd: Readable from the moment that the word was given.
    """

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.is_set = False
        self.fd, self._write_fd = os.pipe()
        self._lock = threading.RLock()  # a signal's handler may set it while this thread does
        self._children: WeakSet[CancelToken] = WeakSet()
        self._parent = parent  # which has to live as long
        if parent is not None:
            parent.adopt(self)

    def adopt(self, child: CancelToken) -> None:
        """Set another token when this one is set, at once where it is."""
        with self._lock:
            self._children.add(child)
        if self.is_set:
            child.set()

    def set(self) -> None:
        """Give the word; a second time changes nothing."""
        with self._lock:
            if not self.is_set:
                self.is_set = True
                os.close(self._write_fd)  # the end of the pipe, which every reader sees and none takes from another
            children = tuple(self._children)
        for child in children:
            child.set()

    def __del__(self) -> None:
        if not self.is_set:
            os.close(self._write_fd)  # a child has this one for its parent, so that none is left to be told
        os.close(self.fd)


_CLOSED = -1
Message = dict[str, Any]
"""One JSON object, as `WorkerChannel` carries it."""


class ChannelClosedError(Exception):
    """The other side is gone."""


class ChannelTimeoutError(Exception):
    """Nothing came in time."""


class WorkerChannel:
    """A pair of pipe ends that carry one JSON object a line.

    Args:
        read_fd: Where messages come from.
        write_fd: Where messages go.
        stop: Ends a wait from another thread.
    """

    def __init__(self, read_fd: int, write_fd: int, stop: CancelToken | None = None) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._stop = stop
        self._pending = b""
        self._owner = os.getpid()

    def send(self, message: Mapping[str, object]) -> None:
        """Write one message.

        Raises:
            ChannelClosedError: The other side is gone.
        """
        if os.getpid() != self._owner:
            # The user's code forked and the copy came back to us: only the first process may answer.
            os._exit(0)
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except (BrokenPipeError, OSError) as error:
            raise ChannelClosedError from error

    def receive(self, timeout_seconds: float | None = None) -> Message:
        """Read one message.

        Raises:
            ChannelClosedError: The other side is gone.
            ChannelTimeoutError: Nothing came within `timeout_seconds`.
            KeyboardInterrupt: The stop was set.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            line = self._read_line(deadline)
            with contextlib.suppress(ValueError):  # a worker that dies while it writes leaves half a line
                message: Message = json.loads(line)
                return message

    def close(self) -> None:
        """Close both ends, once: another thread's file may have their numbers from then on."""
        ends, self._read_fd, self._write_fd = (self._read_fd, self._write_fd), _CLOSED, _CLOSED
        for fd in ends:
            if fd != _CLOSED:
                os.close(fd)

    def _read_line(self, deadline: float | None) -> bytes:
        if self._read_fd == _CLOSED:
            raise ChannelClosedError
        while b"\n" not in self._pending:
            self._wait(deadline)
            chunk = os.read(self._read_fd, _CHUNK)
            if not chunk:
                raise ChannelClosedError
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _wait(self, deadline: float | None) -> None:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        stop_fds = [] if self._stop is None else [self._stop.fd]
        readable, _, _ = select.select([self._read_fd, *stop_fds], [], [], remaining)
        if self._stop is not None and self._stop.is_set:
            raise KeyboardInterrupt
        if not readable:
            raise ChannelTimeoutError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
