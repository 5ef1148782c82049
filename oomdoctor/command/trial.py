"""Run one trial of a command: start it, listen until its outcome is known, and kill all that it started.

It is ended by SIGKILL, from its launcher down to its data loaders: no checkpoint, logger or `atexit` of the script sees
an end that training would not have. A trial can be begun before the search asks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import selectors
import shutil
import socket
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from oomdoctor.trial.process import CancelToken, GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from oomdoctor.command.trial_events import TrialEvents

_LONGEST_PATH: Final = 80
"""A socket's name has 108 bytes; beyond this the directory is made in `/tmp`."""


class SocketDirectory:
    """A directory for sockets that nobody else can enter, and a guardian that removes it where this process cannot.

    Attributes:
        path: The directory.
    """

    def __init__(self) -> None:
        name = f"oomdoctor-{secrets.token_hex(8)}"
        parent = Path(tempfile.gettempdir())
        self.path = (parent if len(str(parent / name)) <= _LONGEST_PATH else Path("/tmp")) / name  # noqa: S108 - a name that nobody can guess, and 0o700
        report_read, report_write = os.pipe()
        # Before the directory is made, so that there is no moment at which nobody would remove it.
        self._guardian = GuardedProcess((), os.environ, report_write, doomed=self.path)
        for fd in (report_read, report_write):
            os.close(fd)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._guardian.close()


_CHUNK = 65536
_LONGEST_LINE = 64 << 20
_BACKLOG = 64


class Listener:
    """Takes lines of JSON from every process that connects; use it as a context manager.

    What is no JSON object is passed over: the command's code could write to the socket too, and whatever comes is data.

    Args:
        path: Name of the socket, which must not exist yet; it is removed in the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's own
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._partial: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._path.unlink(missing_ok=True)

    @property
    def fd(self) -> int:
        """Descriptor that is readable where there may be messages."""
        return self._selector.fileno()

    def take(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have come since, without waiting."""
        while ready := self._selector.select(0):
            for key, _ in ready:
                if key.fileobj is not self._socket:
                    yield from self._read(key.fileobj)  # type: ignore[arg-type]
                    continue
                with contextlib.suppress(OSError):  # who connected may have gone again
                    connection, _ = self._socket.accept()
                    connection.setblocking(False)  # noqa: FBT003 - the standard library's own
                    self._selector.register(connection, selectors.EVENT_READ)

    def take_the_rest(self, longest_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the messages that still come, until all who have connected are gone."""
        deadline = time.monotonic() + longest_seconds
        yield from self.take()
        while len(self._selector.get_map()) > 1 and (left := deadline - time.monotonic()) > 0:
            self._selector.select(left)
            yield from self.take()

    def _read(self, connection: socket.socket) -> Iterator[dict[str, Any]]:
        fd = connection.fileno()
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        *lines, rest = (self._partial.pop(fd, b"") + chunk).split(b"\n")
        if chunk and len(rest) <= _LONGEST_LINE:
            self._partial[fd] = rest
        else:
            self._selector.unregister(connection)
            connection.close()
        yield from filter(None, map(_message, lines))


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("pid"), int) else None


_CLOSING_SECONDS: Final = 10.0
"""Longest time that a command may take to end once memory has run out or an error has ended its training."""

_HEARTBEAT_SECONDS: Final = 15.0
"""Time after which a trial that still runs is told of, and after that each time again."""

_ENDING_SECONDS: Final = 5.0
"""Longest wait for those that were killed."""

_REPORT_BYTES: Final = 65536


@dataclass(frozen=True, slots=True)
class TrialStart:
    """The start of a trial.

    Attributes:
        command: The program and its arguments, sizes filled in.
        directory: Its working directory.
        environment: Its environment, but for the path of the socket.
        sockets: A directory of ours for sockets.
        name: The trial's, in that directory.
        timeout_seconds: Longest time that it may take.
    """

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    sockets: Path
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that has ended.

    Attributes:
        events: The events of its processes.
        return_code: The command's, negative for a signal; None where it was ended by us.
        timed_out: Whether it was ended because it took too long.
        seconds: Its duration.
        tail: The end of its output.
    """

    events: TrialEvents
    return_code: int | None
    timed_out: bool
    seconds: float
    tail: str | None


def run_trial(
    start: TrialStart,
    events: TrialEvents,
    stops: Sequence[CancelToken] = (),
    heartbeat: Callable[[float], None] | None = None,
) -> EndedTrial:
    """Run one trial to its end.

    Args:
        start: The command and its surroundings.
        events: Takes in the messages of its processes, until the last of them is gone, however the trial ends.
        stops: Each ends it from another thread.
        heartbeat: Called from time to time with the seconds that the trial has taken.

    Raises:
        KeyboardInterrupt: A stop was set.
    """
    path = start.sockets / start.name
    with Listener(path) as listener:
        report_read, report_write = os.pipe()
        try:
            started = time.monotonic()
            environment = {**start.environment, "OOMDOCTOR_TRIAL_SOCKET": str(path)}
            process = GuardedProcess(start.command, environment, report_write, directory=start.directory)
            os.close(report_write)
            watch = _TrialWait(listener, events, report_read, stops, started + start.timeout_seconds)
            try:
                watch.until_over(heartbeat)
            finally:
                process.close()
                # Programs that were forked from a server end a moment after their command.
                for message in listener.take_the_rest(_ENDING_SECONDS):
                    events.add(message)
        finally:
            os.close(report_read)
        seconds = time.monotonic() - started
    return EndedTrial(events, watch.return_code, watch.timed_out, seconds, process.tail())


class _TrialWait:
    """Waits for the outcome of one trial.

    Args:
        listener: Receives the messages of its processes.
        events: Takes them in.
        report_fd: Descriptor on which the guardian reports that the command has ended.
        stops: Each ends the wait.
        deadline: End of the wait, on the monotonic clock.

    Attributes:
        return_code: The command's, once it has ended by itself.
        timed_out: Whether the deadline has passed.
    """

    def __init__(
        self, listener: Listener, events: TrialEvents, report_fd: int, stops: Sequence[CancelToken], deadline: float
    ) -> None:
        self._listener = listener
        self._report_fd = report_fd
        self._stops = stops
        self._deadline = deadline
        self._closing: float | None = None
        self._events = events
        self.return_code: int | None = None
        self.timed_out = False

    def until_over(self, heartbeat: Callable[[float], None] | None) -> None:
        """Return once the outcome is known, or nothing more will come."""
        begun = beat = time.monotonic()
        while not self._is_over():
            self._wait(beat + _HEARTBEAT_SECONDS)
            if heartbeat is not None and time.monotonic() >= beat + _HEARTBEAT_SECONDS:
                beat = time.monotonic()
                heartbeat(beat - begun)
            for message in self._listener.take():
                self._events.add(message)

    def _is_over(self) -> bool:
        events, now = self._events, time.monotonic()
        trains_on = events.without_optimizer.keys() - events.measured.keys()  # with nothing that takes a step
        is_ended = self.return_code is not None or trains_on or events.has_refused_remedies
        if is_ended or events.has_all_steps or events.has_survived or events.has_died_of_oom:
            return True
        if self._closing is None and (events.ooms or events.has_failed):
            # It is let go on for a while: whether it survives, and what it prints, are part of the answer.
            self._closing = now + _CLOSING_SECONDS
        self.timed_out = now >= self._deadline and self._closing is None
        return self.timed_out or (self._closing is not None and now >= self._closing)

    def _wait(self, longest: float) -> None:
        deadline = min(longest, self._deadline if self._closing is None else self._closing)
        fds = [self._listener.fd, self._report_fd, *(stop.fd for stop in self._stops)]
        readable, _, _ = select.select(fds, [], [], max(0.0, deadline - time.monotonic()))
        if any(stop.is_set for stop in self._stops):
            raise KeyboardInterrupt
        if self._report_fd in readable:
            report = os.read(self._report_fd, _REPORT_BYTES).strip()
            # A guardian that was killed says nothing, and then the command was killed with it.
            self.return_code = json.loads(report)["return_code"] if report else -9


TrialSize: TypeAlias = tuple[int, int, int]
"""Micro-batch, accumulation steps and allowed bytes of a trial."""


class SpeculativeTrial:
    """A trial that is begun before the search asks for it, beside the one that it has asked for; at most one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._running: tuple[TrialSize, CancelToken, Future[EndedTrial]] | None = None

    def begin(self, size: TrialSize, run: Callable[[CancelToken], EndedTrial]) -> None:
        """Begin a trial, in place of one that nobody has asked for meanwhile."""
        self.drop()
        stop = CancelToken()
        self._running = size, stop, self._pool.submit(run, stop)

    def take(self, size: TrialSize) -> EndedTrial | None:
        """Wait for the trial of this size to end and return it; None where it was not begun.

        Raises:
            KeyboardInterrupt: A stop was set.
        """
        if self._running is None or self._running[0] != size:
            return None
        (_, _, future), self._running = self._running, None
        return future.result()

    def drop(self) -> None:
        """End the trial that was begun, if there is one."""
        if self._running is not None:
            (_, stop, future), self._running = self._running, None
            stop.set()
            future.exception()

    def close(self) -> None:
        """End the thread."""
        self.drop()
        self._pool.shutdown()
