"""The parent's side: start a worker, ask it for trials, and replace it where a trial did not leave memory as it was."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeAlias

from oomdoctor.codec import decode
from oomdoctor.engines.catalogue import Card
from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError, UsageError
from oomdoctor.results import Outcome, Phase, Trial
from oomdoctor.trial.dependencies import Dependencies
from oomdoctor.trial.process import GuardedProcess
from oomdoctor.trial.protocol import Channel, ChannelClosedError, ChannelTimeoutError, Message, ProfileOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.request import ProbeRequest
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.process import CancelToken


_KNOWN_ERRORS: dict[str, type[OomdoctorError]] = {
    kind.__name__: kind for kind in (NoAnswerError, TargetError, UsageError)
}


class WorkerHandle(Protocol):
    """A worker that runs under a guardian: what `GuardedProcess` says of its command."""

    @property
    def is_open(self) -> bool:
        """Whether it was not ended yet."""

    def close(self) -> None:
        """End the worker and everything that it started; returns when nothing of it is left."""

    def tail(self) -> str | None:
        """Return the end of its output, with a heading; None where it printed nothing. Call after it has ended."""


WorkerStarter: TypeAlias = "Callable[[Mapping[str, str], int, int], WorkerHandle]"
"""Starts a worker: its whole environment, the descriptor of its requests, and that of its answers."""


def start_interpreter(environment: Mapping[str, str], requests_fd: int, answers_fd: int) -> WorkerHandle:
    """Start a worker in an interpreter of its own."""
    worker = [sys.executable, "-P", "-m", "oomdoctor.trial.worker", str(requests_fd), str(answers_fd)]
    return GuardedProcess(worker, environment, answers_fd, pass_fds=(requests_fd, answers_fd))


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
        requests_read, requests_write = os.pipe()
        answers_read, answers_write = os.pipe()
        self._process = (start or start_interpreter)(environment, requests_read, answers_write)
        for fd in (requests_read, answers_write):
            os.close(fd)
        self._channel = Channel(answers_read, requests_write, stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Message, *, what: str, timeout_seconds: float) -> Message:
        """Send a request and wait for its answer.

        Args:
            request: What `oomdoctor.trial.worker` understands.
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


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What PyTorch holds between trials.

    Attributes:
        allocated_bytes: In live tensors.
        reserved_bytes: From the driver.
    """

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """What the worker said once the model was on the device.

    Attributes:
        name: The device's name.
        compute_capability: Such as `8.9`.
        has_kernels: Whether this torch was built for such a card.
        total_bytes: Its memory.
        used_before_bytes: What was in use before the model: the context, and other processes on a real GPU.
        capacity_bytes: Bytes that PyTorch may take.
        weights_bytes: Bytes of parameters and buffers; None where nobody counted them.
        placement_error: Text of the OOM when the model alone does not fit, else None.
        held: What PyTorch holds once the model is there: what every trial has to start from.
        phases: Memory while loading.
        found: What the target's file has: name of the function to where it was found.
        versions: Version by name.
    """

    name: str
    compute_capability: str
    has_kernels: bool
    total_bytes: int
    used_before_bytes: int
    capacity_bytes: int
    weights_bytes: int | None
    placement_error: str | None
    held: HeldMemory
    phases: tuple[Phase, ...]
    found: dict[str, str]
    versions: dict[str, str]


class WorkerTrialSource:
    """One probe's trials; use it as a context manager.

    Args:
        request: What to train and how.
        reference: The target, parsed.
        environment: The worker's environment.
        stop: Ends a wait from another thread.
        start: Starts its workers; None for fresh interpreters.

    Attributes:
        capacity_bytes: As last measured: the context grows as kernels load.
        held: What PyTorch held after the last trial.
        replaced: Workers that were replaced because a trial had left memory behind.
        problem: Message, hint and details of the last trial that failed for another reason than memory.
        optimizer_name: Class name of the optimizer that ran.
        loss_is_finite: False once a loss was NaN or infinite.
        zeros_read: Most times that one trial's step read data back from a null GPU.
        unknown_calls: Names of CUDA calls that the null GPU was asked for and does not serve.
    """

    def __init__(
        self,
        request: ProbeRequest,
        reference: Reference,
        environment: Mapping[str, str],
        stop: CancelToken | None = None,
        start: WorkerStarter | None = None,
    ) -> None:
        self._request = request
        self._reference = reference
        self._environment = environment
        self._stop = stop
        self._start_worker = start
        self._child: WorkerProcess | None = None
        self._fresh: WorkerProcess | None = None
        self._start: HeldMemory | None = None
        self._traces: dict[int, list[int]] = {}
        self.held: HeldMemory | None = None
        self.capacity_bytes = 0
        self.replaced = 0
        self.problem: dict[str, str | None] | None = None
        self.optimizer_name = ""
        self.loss_is_finite = True
        self.zeros_read = 0
        self.unknown_calls: tuple[str, ...] = ()
        self._dependencies = Dependencies()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def device(self) -> Card:
        """Start a worker and have it say what it runs on; the next `load` is its.

        Raises:
            NoAnswerError: No device, a crash, or the time limit.
        """
        self._fresh = self._child = self._worker()
        answer = self._ask(self._child, "looking at the GPU", {"op": "device"})
        return decode(Card, answer["card"], "card")

    def load(self) -> LoadedTarget:
        """Start a worker, where there is none that has loaded nothing yet, and have it load the target.

        Raises:
            TargetError: The target's code is at fault.
            NoAnswerError: No device, a crash, or the time limit.
        """
        if self._fresh is None:
            self.close()
        self._child = child = self._fresh or self._worker()
        self._fresh = None
        answer = self._ask(
            child,
            "loading the target",
            {
                "op": "load",
                "reference": asdict(self._reference),
                "precision": self._request.precision,
                "optimizer": self._request.optimizer,
                "memory_bytes": self._request.memory_bytes,
            },
        )
        loaded = decode(LoadedTarget, answer, "loaded")
        self.capacity_bytes = loaded.capacity_bytes
        self._start = loaded.held
        return loaded

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:
        """Run one trial; the next one finds memory as this one found it.

        Raises:
            TargetError: The target's code is at fault.
            NoAnswerError: A crash or the time limit.
        """
        question = {"micro_batch": micro_batch, "micro_steps": micro_steps, "allowed_bytes": allowed_bytes}
        answer = self._ask_for_trial(self._child or self._replacement(), question)
        self._note(answer)
        return decode(Trial, answer["trial"], "trial")

    def foresee(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:
        """The largest size between two that a replay of earlier trials can place; None where none can be replayed.

        Raises:
            NoAnswerError: A crash or the time limit.
        """
        if len(self._traces) < 2:  # noqa: PLR2004 - a line needs two points
            return None
        child = self._child or self._replacement()
        request = {"op": "foresee", "low": low, "high": high, "allowed_bytes": allowed_bytes, "retries": retries}
        size: int | None = self._ask(child, f"a replay between {low} and {high}", request | {"traces": self._traces})[
            "size"
        ]
        return size

    def profile(
        self, micro_batch: int, *, micro_steps: int, allowed_bytes: int, peak_allocated_bytes: int | None = None
    ) -> ProfileOutcome:
        """Say what memory is made of at a size; what goes wrong is a reason, and no error.

        Args:
            micro_batch: The size.
            micro_steps: Micro-batches in each optimizer step.
            allowed_bytes: Most bytes that the allocator may hold.
            peak_allocated_bytes: The peak of a trial that was the same; None to run one for it.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        question = {"micro_batch": micro_batch, "micro_steps": micro_steps, "allowed_bytes": allowed_bytes}
        try:
            if peak_allocated_bytes is None:
                trial = self._unwatched(question)
                if trial.outcome is not Outcome.FITS:
                    return ProfileOutcome(None, trial.error, trial.outcome)
                peak_allocated_bytes = trial.peak_allocated_bytes
            request = {"op": "profile", **question, "peak_allocated_bytes": peak_allocated_bytes}
            answer = self._ask(self._ready(), f"recording memory at micro-batch {micro_batch}", request)
        except OomdoctorError as error:
            self._lose()
            return ProfileOutcome(None, error.message, Outcome.FAILED)
        self._keep_or_retire(answer)
        return decode(ProfileOutcome, answer, "profiled")

    def on_another_card(self, request: ProbeRequest, environment: Mapping[str, str]) -> WorkerTrialSource:
        """Return a source of trials of the same target in another environment.

        Args:
            request: What to train and how.
            environment: The environment of its workers.
        """
        return WorkerTrialSource(request, self._reference, environment, self._stop, self._start_worker)

    def _worker(self) -> WorkerProcess:
        return WorkerProcess(self._environment, self._stop, self._start_worker)

    def _unwatched(self, question: dict[str, int]) -> Trial:
        """A trial that counts for nothing but the peak that a watched one has to have."""
        answer = self._ask_for_trial(self._ready(), question)
        self._keep_or_retire(answer)
        return decode(Trial, answer["trial"], "trial")

    def _ready(self) -> WorkerProcess:
        """A worker for what comes after the answer; that it may be another one says nothing about the trials."""
        return self._child or self._reloaded()

    def dependencies(self) -> Dependencies:
        """What the target used in every worker so far."""
        if self._child is not None:
            try:
                answer = self._ask(self._child, "asking what the target used", {"op": "dependencies"})
            except OomdoctorError:
                self._lose()
            else:
                self._dependencies |= decode(Dependencies, answer["dependencies"], "dependencies")
        return self._dependencies

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _retire(self) -> None:
        """End a worker that another will replace."""
        self.dependencies()
        self.close()

    def _lose(self) -> None:
        """Close after a worker that can be asked no more."""
        self._dependencies |= Dependencies(unseen=("a worker was lost before it said what the target used",))
        self.close()

    def _replacement(self) -> WorkerProcess:
        child = self._reloaded()
        self.replaced += 1
        return child

    def _reloaded(self) -> WorkerProcess:
        self.load()
        if self._child is None:
            raise RuntimeError("`load` starts a worker")
        return self._child

    def _ask(self, child: WorkerProcess, what: str, request: dict[str, Any]) -> dict[str, Any]:
        return child.ask(request, what=what, timeout_seconds=self._request.trial_timeout_seconds)

    def _ask_for_trial(self, child: WorkerProcess, question: dict[str, int]) -> dict[str, Any]:
        return self._ask(child, f"the trial at micro-batch {question['micro_batch']}", {"op": "trial", **question})

    def _note(self, answer: dict[str, Any]) -> None:
        self.problem = answer["problem"] or self.problem
        self.optimizer_name = answer["optimizer"] or self.optimizer_name
        self.loss_is_finite = self.loss_is_finite and answer["loss_is_finite"]
        self.zeros_read = max(self.zeros_read, answer["zeros_read"])
        self.unknown_calls = tuple(dict.fromkeys((*self.unknown_calls, *answer["unknown_calls"])))
        self.capacity_bytes = answer["capacity_bytes"]
        if answer["trace"]:
            self._traces[answer["trial"]["micro_batch"]] = answer["trace"]
        self._keep_or_retire(answer)

    def _keep_or_retire(self, answer: dict[str, Any]) -> None:
        self.held = decode(HeldMemory, answer["held"], "held")
        if self.held != self._start:
            self._retire()
