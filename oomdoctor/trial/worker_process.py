"""A worker as the parent sees it: start it, ask it, wait for its answer, and say how it died. No torch here."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, Self, TypeAlias, TypeVar

from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.trial.process import ChannelClosedError, ChannelTimeoutError, GuardedProcess, channel_to_child
from oomdoctor.trial.protocol import Question, answer_type, receive_answer, send
from oomdoctor.trial.worker_answers import Bug, Died, Failed, SettingsChanged, SettingsChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.trial.process import CancelToken

AnswerT = TypeVar("AnswerT")
_WORKER: Final = "oomdoctor.trial.worker"


class WorkerHandle(Protocol):
    """A worker that runs under a guardian; `GuardedProcess` is one."""

    @property
    def is_open(self) -> bool:
        """Return whether it still runs, as far as the parent has not ended it."""

    def close(self) -> None:
        """End the worker and everything that it started; returns when nothing of it is left."""

    def tail(self) -> str | None:
        """Return the end of its output, with a heading; None where it printed nothing. Call after it has ended."""


WorkerStarter: TypeAlias = "Callable[[Mapping[str, str], int, int], WorkerHandle]"
"""Starts a worker: its whole environment, the descriptor of its questions, and that of its answers."""


def start_interpreter(environment: Mapping[str, str], questions_fd: int, answers_fd: int) -> WorkerHandle:
    """Start a worker in an interpreter of its own."""
    worker = [sys.executable, "-P", "-m", _WORKER, str(questions_fd), str(answers_fd)]
    return GuardedProcess(worker, environment, answers_fd, pass_fds=(questions_fd, answers_fd))


class WorkerProcess:
    """A worker under a guardian, in a session of its own; use it as a context manager.

    Args:
        environment: The worker's whole environment; it decides which device torch sees.
        stop: Ends a wait from another thread.
        start: Starts it; None for a fresh interpreter.
    """

    def __init__(
        self, environment: Mapping[str, str], stop: CancelToken | None = None, start: WorkerStarter | None = None
    ) -> None:
        with channel_to_child(stop) as (self._channel, fds):
            self._process = (start or start_interpreter)(environment, *fds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: Question[AnswerT], *, what: str, timeout_seconds: float) -> AnswerT:
        """Send a question and wait for its answer.

        Args:
            question: One of those in `oomdoctor.trial.protocol`.
            what: What is being done, to name it in errors, such as `the trial at micro-batch 8`.
            timeout_seconds: Longest time to wait.

        Raises:
            TargetError: The worker says so, or the user's code ended the process.
            UsageError: The worker says so.
            NoAnswerError: The worker says so, crashed, or took too long.
            KeyboardInterrupt: The stop was set.
        """
        self.begin(question, what=what)
        return self.answer(answer_type(question), what=what, timeout_seconds=timeout_seconds)

    def begin(self, question: Question[object], *, what: str) -> None:
        """Send a question; its answer comes after those to earlier ones.

        Raises:
            NoAnswerError: The worker is gone.
        """
        try:
            send(self._channel, question)
        except ChannelClosedError:
            self._raise_lost(what)

    def answer(self, kind: type[AnswerT], *, what: str, timeout_seconds: float) -> AnswerT:
        """Wait for the next answer, which is a `kind`; the other arguments and the errors are those of `ask`."""
        try:
            answer = receive_answer(self._channel, timeout_seconds)
        except ChannelTimeoutError:
            self.close()
            raise NoAnswerError(
                f"{what} took longer than {timeout_seconds:g} s",
                hint="raise the limit with `--trial-timeout`, or look for a loop or a wait in the target's code",
                details=self._process.tail(),
            ) from None
        except ChannelClosedError:
            self._raise_lost(what)
        if isinstance(answer, Died):
            self._raise_died(answer.return_code, what)
        if isinstance(answer, Failed):
            raise answer.problem.error()
        if isinstance(answer, SettingsChanged):
            raise SettingsChangedError(answer.variables)
        if isinstance(answer, kind):
            return answer
        raise RuntimeError(answer.details if isinstance(answer, Bug) else f"the worker answered with {answer!r}")

    def close(self) -> None:
        """End the worker and everything that it started; returns when nothing of it is left."""
        if self._process.is_open:
            self._process.close()
            self._channel.close()

    def _raise_lost(self, what: str) -> NoReturn:
        raise NoAnswerError(f"the worker was lost during {what}", details=self._process.tail()) from None

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
