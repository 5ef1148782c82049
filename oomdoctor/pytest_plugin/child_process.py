"""The process on a null GPU that runs the tests of one card, seen from the session that people started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.command.trial import SocketDirectory
from oomdoctor.engines.choice import choose_engine
from oomdoctor.errors import NoAnswerError
from oomdoctor.request import build_request
from oomdoctor.run.launcher import lone_variables
from oomdoctor.trial.process import ChannelClosedError, ChannelTimeoutError, Message, channel_to_child

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from oomdoctor.results import LoneRank


_BOOT: Final = str(Path(__file__).with_name("child_main.py"))
_PATIENCE_SECONDS: Final = 1.0
_END_SECONDS: Final = 30.0
_INTERRUPTED_SECONDS: Final = 3.0


class ChildProcess:
    """One process, in which marked tests of one card run one after the other.

    Args:
        config: Of the session that people started.
        card: Key of the card that its null GPU plays.
        start: What it is told first, see `oomdoctor.pytest_plugin.child_session`.
        rank: The rank of a world that it plays alone; None for a process without others.

    Raises:
        OomdoctorError: The null GPU cannot be had here.
    """

    def __init__(
        self, config: pytest.Config, card: str, start: Mapping[str, Any], rank: LoneRank | None = None
    ) -> None:
        self._card = card
        command, directory = (*_interpreter(), _BOOT), Path(config.invocation_params.dir)
        request = build_request(command, target_batch=1, directory=directory, gpu=card)
        engine = choose_engine(
            engine=request.engine,
            gpu=request.gpu,
            device=request.device,
            memory_bytes=request.memory_bytes,
            base=request.environment(os.environ),
            may_trace=False,
        )
        self._objects = None if rank is None else SocketDirectory()
        variables = {} if rank is None else lone_variables(rank)
        if self._objects is not None:
            variables["OOMDOCTOR_LONE_OBJECTS"] = str(self._objects.path)
        with (
            channel_to_child() as (self._channel, channel_fds),
            _uncaptured(config),
            _file_of({"path": sys.path, **start}) as start_fd,
        ):
            fds = (start_fd, *channel_fds)
            self._process = subprocess.Popen(
                [*command, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=engine.environment | variables,
                cwd=request.directory,
            )

    def run(self, request: Mapping[str, Any]) -> Iterator[Message]:
        """Have it run a test, and hand on what it tells meanwhile; the last message is `done` or another ending.

        Raises:
            NoAnswerError: It ended.
        """
        try:
            self._channel.send({"op": "run", **request})
        except ChannelClosedError:
            raise self._lost() from None
        while (message := self._next()) is not None:
            yield message
            if message["event"] in {"done", "missing", "exit", "interrupted"}:
                return
        raise self._lost()

    def finish(self) -> Iterator[Message]:
        """Have it tear down what is left and end, and hand on what it tells meanwhile.

        Raises:
            NoAnswerError: pytest or a plugin failed in it.
        """
        with suppress(ChannelClosedError):
            self._channel.send({"op": "end"})
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        """End it, gently if it ends by itself in time; returns when it is gone."""
        if self._process.returncode is None:
            with suppress(ChannelClosedError):
                self._channel.send({"op": "end"})
            self._wait()
        with suppress(OSError):
            self._channel.close()
        if self._objects is not None:
            self._objects.close()

    def interrupt(self) -> None:
        """End it amid a test, as Ctrl-C does; a terminal has sent it that already, and leaves it time to clean up."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_INTERRUPTED_SECONDS)
            return
        self._process.send_signal(signal.SIGINT)
        self._wait()

    def _wait(self) -> int:
        """Return the exit code; a process that does not end in time is killed."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _next(self) -> Message | None:
        """Return the next message; None where the process is gone, which a child that holds the pipe open may hide.

        Raises:
            NoAnswerError: pytest or a plugin failed in it.
        """
        while True:
            try:
                message = self._channel.receive(_PATIENCE_SECONDS)
                break
            except ChannelTimeoutError:
                if self._process.poll() is not None:
                    return None
            except ChannelClosedError:
                return None
        if message["event"] == "internal_error":
            raise NoAnswerError(
                f"pytest or a plugin failed in the process on the null GPU (`{self._card}`)", details=message["text"]
            )
        return message

    def _lost(self) -> NoAnswerError:
        code = self._wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        hint = "its last words are on standard error"
        if code == -signal.SIGKILL:
            hint = "was it the kernel, for want of host memory? `dmesg` tells"
        return NoAnswerError(f"the process on the null GPU (`{self._card}`) ended {how}", hint=hint)


def _interpreter() -> list[str]:
    """Return this Python, as it was told to warn and to optimise."""
    return [
        sys.executable,
        "-P",
        *(f"-W{option}" for option in sys.warnoptions),
        *(f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()),  # noqa: SLF001 - documented for CPython
        *["-O"] * sys.flags.optimize,
    ]


@contextmanager
def _file_of(start: Mapping[str, Any]) -> Iterator[int]:
    """Make a file in memory and yield its descriptor; a command line may be too short for all of it."""
    with os.fdopen(os.memfd_create("start"), "w", encoding="utf-8") as file:
        json.dump(start, file)
        file.seek(0)
        yield file.fileno()


@contextmanager
def _uncaptured(config: pytest.Config) -> Iterator[None]:
    """Let a process inherit the real streams, and not those that pytest puts in their place."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    if manager is None:
        yield
        return
    with manager.global_and_fixture_disabled():
        yield
