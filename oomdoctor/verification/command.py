"""Verify a command: run it with the whole batch and with its parts, and compare what each optimizer step steps with."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Final

from oomdoctor.command.outcome import never_stepped
from oomdoctor.command.template import Sizes, accumulates, check_command, fill_command
from oomdoctor.command.trial import SocketDirectory, TrialStart, run_trial
from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.request import ACCUMULATION
from oomdoctor.run.environment import with_agent
from oomdoctor.verification.command_judgement import CommandJudge
from oomdoctor.verification.recording import Recording

if TYPE_CHECKING:
    from oomdoctor.command.trial import EndedTrial
    from oomdoctor.progress import Progress
    from oomdoctor.results.verify import VerifyResult
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.verification.run import VerifyRequest

_STEPS: Final = 5
"""Optimizer steps of a run: two whole windows, the last one of an epoch, one of the next epoch, and what follows it."""
_WHOLE_WINDOWS: Final = 2
_DROPPED: Final = ("OOMDOCTOR_RUN_", "OOMDOCTOR_TRIAL_", "OOMDOCTOR_FORK_")
_SETTINGS: Final = {
    "TORCHDYNAMO_DISABLE": "1",  # compiled code would not show its steps
    "NVIDIA_TF32_OVERRIDE": "0",  # which rounds to ten bits
    "PYTHONHASHSEED": "0",
}
_MOST_FILES: Final = 3
_NO_GPU: Final = re.compile(
    r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available|no GPUs found"
)
"""Message of PyTorch where a GPU is used and there is none."""


def verify_command(
    request: VerifyRequest, progress: Progress, stop: CancelToken | None = None
) -> tuple[VerifyResult, dict[str, str]]:
    """Return the verdict on a command, and the versions in it.

    Args:
        request: The question, with its command.
        progress: Told of each run.
        stop: Ends it from another thread.

    Raises:
        UsageError: The command cannot be started, or does not take both sizes.
        TargetError: It fails, or takes no optimizer step.
        NoAnswerError: There is a null GPU, or none where the command needs one, memory ran out, or the time limit.
        KeyboardInterrupt: The stop was set.
    """
    command = request.command or ()
    check_command(command, request.directory, os.environ, takes_literals=False)
    if not accumulates(command):
        raise UsageError(
            f"the command is not told its accumulation steps: it has no `{ACCUMULATION}`",
            hint=f"put it where they go, as in `--grad-accum {ACCUMULATION}`",
        )
    if "OOMDOCTOR_NULL_NAME" in os.environ:
        raise NoAnswerError(
            "a null GPU computes nothing, so that there are no gradients to compare",
            hint="verify on the CPU or on a GPU: start it outside of `oomdoctor run --gpu`",
        )
    runs = _Runs(request, progress, stop)
    try:
        return runs.judge()
    finally:
        runs.close()


class _Runs:
    """Runs of the command of one verification."""

    def __init__(self, request: VerifyRequest, progress: Progress, stop: CancelToken | None) -> None:
        self._request = request
        self._progress = progress
        self._stops = () if stop is None else (stop,)
        self._sockets = SocketDirectory()
        self._count = 0
        self._written: dict[str, None] = {}
        self._versions: dict[str, str] = {}

    def close(self) -> None:
        self._sockets.close()

    def judge(self) -> tuple[VerifyResult, dict[str, str]]:
        micro_batch = self._request.samples // self._request.parts
        whole, parts = self._run(self._request.samples, 1), self._run(micro_batch, self._request.parts)
        judge = CommandJudge(
            micro_batch, self._request.parts, whole, parts, lambda: self._run(self._request.samples, 1)
        )
        return judge.judge(self._request.target, self._notes()), self._versions

    def _notes(self) -> tuple[str, ...]:
        if not self._written:
            return ()
        names = [f"`{os.path.relpath(path, self._request.directory)}`" for path in self._written]
        more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
        return (f"the command wrote {', '.join(names[:_MOST_FILES])}{more}",)

    def _run(self, micro_batch: int, steps: int) -> Recording:
        """Run the command at one size, and return what it did."""
        request, events = self._request, TrialEvents()
        self._count += 1
        what = f"{steps} micro-batches of {micro_batch}" if steps > 1 else f"the whole batch of {micro_batch}"
        self._progress.stage(f"running {request.target} with {what}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        epoch = self._epoch_samples()
        start = TrialStart(
            command=fill_command(request.command or (), Sizes(micro_batch, steps, 1)),
            directory=request.directory,
            environment={
                **with_agent(kept),
                **_SETTINGS,
                "OOMDOCTOR_TRIAL_STEPS": str(_STEPS),
                "OOMDOCTOR_TRIAL_ACCUMULATION": f"{micro_batch},{steps},{epoch}",
            },
            sockets=self._sockets.path,
            name=f"trial-{self._count}",
            timeout_seconds=request.timeout_seconds,
        )
        try:
            ended = run_trial(start, events, self._stops)
        finally:
            self._written |= events.written
        for started in events.started.values():
            self._versions = {"python": started.python, "torch": started.torch}
        windows = max(events.windows.values(), key=len, default=[])
        recording = Recording.of(windows)
        _raise_problem(ended, micro_batch, has_steps=any(window.optimizer is not None for window in windows))
        if not recording.steps:
            raise TargetError(
                f"the gradient of the first optimizer step is not finite at micro-batch {micro_batch}",
                hint="a mean over no labels is one reason: see that every micro-batch has some that count",
            )
        return recording

    def _epoch_samples(self) -> int:
        """Return samples of an epoch that ends with a window of half the micro-batches."""
        micro_batch = self._request.samples // self._request.parts
        return _WHOLE_WINDOWS * self._request.samples + max(1, self._request.parts // 2) * micro_batch


def _raise_problem(ended: EndedTrial, micro_batch: int, *, has_steps: bool) -> None:
    """Raise what kept a run from showing its optimizer steps; a run that shows some may end as it likes.

    Raises:
        TargetError: It failed, or took no optimizer step.
        NoAnswerError: Memory or time ran out, or it needs a GPU.
    """
    events = ended.events
    failed = next((measured.error for measured in events.measured.values() if measured.error), None)
    if events.ooms:
        raise NoAnswerError(
            f"the command ran out of memory at micro-batch {micro_batch}",
            hint="verify fewer samples with `--samples`, or hide the GPU with `CUDA_VISIBLE_DEVICES=`",
        )
    if failed is not None:
        text = failed.links[0].text.strip() or failed.links[0].types[0]
        if _NO_GPU.search(text):
            raise _needs_gpu(failed.traceback)
        raise TargetError(f"the command failed at micro-batch {micro_batch}: {text}", details=failed.traceback)
    if failures := [failure for measured in events.measured.values() for failure in measured.failures]:
        raise NoAnswerError(f"the accumulation could not be recorded: {failures[0]}")
    if has_steps:
        return
    if ended.timed_out:
        raise NoAnswerError(
            f"the command took no optimizer step in {ended.seconds:.0f} s",
            hint="raise the limit with `--trial-timeout`",
        )
    if ended.return_code:
        code = ended.return_code
        if _NO_GPU.search(ended.tail or ""):
            raise _needs_gpu(ended.tail)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise TargetError(f"the command {how}", details=ended.tail)
    raise never_stepped(ended)


def _needs_gpu(details: str | None) -> NoAnswerError:
    return NoAnswerError(
        "the command needs a GPU, and this machine has none",
        hint="verify it where there is one, or let it take the CPU where there is none, as in "
        '`device = "cuda" if torch.cuda.is_available() else "cpu"`: gradients are compared, so that a null GPU, which '
        "computes none, does not do",
        details=details,
    )
