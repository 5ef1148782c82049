"""The parent's handle on one worker process: start it, ask it, end it. Never imports torch."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, Self

from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError, UsageError
from oomdoctor.probing.channel import Channel, ChannelClosedError, ChannelTimeoutError, Message
from oomdoctor.probing.guarded import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.probing.stopping import Stop

_KNOWN_ERRORS: dict[str, type[OomdoctorError]] = {
    kind.__name__: kind for kind in (NoAnswerError, TargetError, UsageError)
}


class Child:
    """A worker under a guardian, in a session of its own; use it as a context manager.

    Args:
        environment: The worker's whole environment; it decides which device torch sees.
        stop: Ends a wait from another thread.
    """

    def __init__(self, environment: Mapping[str, str], stop: Stop | None = None) -> None:
        requests_read, requests_write = os.pipe()
        answers_read, answers_write = os.pipe()
        worker = [sys.executable, "-P", "-m", "oomdoctor.probing.worker", str(requests_read), str(answers_write)]
        pass_fds = (requests_read, answers_write)
        self._process = GuardedProcess(worker, environment, answers_write, pass_fds=pass_fds)
        for fd in pass_fds:
            os.close(fd)
        self._channel = Channel(answers_read, requests_write, stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Message, *, what: str, timeout_seconds: float) -> Message:
        """Send a request and wait for its answer.

        Args:
            request: What `oomdoctor.probing.worker` understands.
            what: As for `answer`.
            timeout_seconds: As for `answer`.

        Raises:
            TargetError: As for `answer`.
            UsageError: As for `answer`.
            NoAnswerError: As for `answer`.
            KeyboardInterrupt: The stop was set.
        """
        self.begin(request, what=what)
        return self.answer(what=what, timeout_seconds=timeout_seconds)

    def begin(self, request: Message, *, what: str) -> None:
        """Send a request; its answer comes after those to earlier ones.

        Raises:
            NoAnswerError: The worker is gone.
        """
        try:
            self._channel.send(request)
        except ChannelClosedError:
            self._raise_lost(what)

    def answer(self, *, what: str, timeout_seconds: float) -> Message:
        """Wait for the next answer.

        Args:
            what: What is being done, to name it in errors, such as `the trial at micro-batch 8`.
            timeout_seconds: Longest time to wait.

        Raises:
            TargetError: The worker says so, or the user's code ended the process.
            UsageError: The worker says so.
            NoAnswerError: The worker says so, crashed, or took too long.
            KeyboardInterrupt: The stop was set.
        """
        try:
            answer = self._channel.receive(timeout_seconds)
        except ChannelTimeoutError:
            self._raise_timeout(what, timeout_seconds)
        except ChannelClosedError:
            self._raise_lost(what)
        if answer["event"] == "died":
            self._raise_died(answer["return_code"], what)
        if answer["event"] == "bug":
            raise RuntimeError(answer["details"])
        if answer["event"] == "error":
            raise _KNOWN_ERRORS[answer["kind"]](answer["message"], hint=answer["hint"], details=answer["details"])
        return answer

    def close(self) -> None:
        """End the worker and everything that it started; returns when nothing of it is left."""
        if self._process.is_open:
            self._process.close()
            self._channel.close()

    def _raise_lost(self, what: str) -> NoReturn:
        raise NoAnswerError(f"the worker was lost during {what}", details=self._process.tail()) from None

    def _raise_timeout(self, what: str, timeout_seconds: float) -> NoReturn:
        self.close()
        raise NoAnswerError(
            f"{what} took longer than {timeout_seconds:g} s",
            hint="raise the limit with `--trial-timeout`, or look for a loop or a wait in the target's code",
            details=self._process.tail(),
        )

    def _raise_died(self, return_code: int, what: str) -> NoReturn:
        self.close()
        if return_code >= 0:
            raise TargetError(
                f"the target's code ended the process with exit code {return_code} during {what}",
                hint="remove the call to `exit` or `os._exit` from the functions that oomdoctor runs",
                details=self._process.tail(),
            )
        name = signal.Signals(-return_code).name
        hint = "a crash is not an out-of-memory error; run the target by itself to see where it crashes"
        if name == "SIGKILL":
            hint = "was it the kernel, for want of host memory? `dmesg` tells; try fewer or smaller host tensors"
        raise NoAnswerError(f"the worker was ended by {name} during {what}", hint=hint, details=self._process.tail())
