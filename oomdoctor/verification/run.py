"""Verify a target from the parent, in a worker that sees no GPU, or a command, and make the document."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from oomdoctor import __version__
from oomdoctor.errors import EXIT_GATE, EXIT_NO_ANSWER, EXIT_OK, UsageError
from oomdoctor.request import command_line
from oomdoctor.results.document import VerifyDocument
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.protocol import VerifyTarget
from oomdoctor.trial.worker_process import WorkerProcess
from oomdoctor.units import whole_number
from oomdoctor.verification.command import verify_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.option_values import Spelling
    from oomdoctor.progress import Progress
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.worker_process import WorkerStarter

DEFAULT_PARTS: Final = 4
DEFAULT_TIMEOUT_SECONDS: Final = 300.0
_SAMPLES_PER_PART: Final = 2
_LARGEST_BATCH: Final = 10_000_000
_EXIT_CODES: Final = {"different": EXIT_GATE, "cannot_tell": EXIT_NO_ANSWER}


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """One question to `oomdoctor verify`.

    Attributes:
        target: Reference to the user's file, as given; for a command, the command in one line.
        directory: Where relative references start.
        parts: Equal micro-batches that the batch is cut into.
        samples: Samples of the batch, a multiple of `parts`.
        precision: Type in which it is computed.
        timeout_seconds: Longest time for the whole verification, or for each run of a command.
        command: A command whose words have placeholders for both sizes, instead of a file.
    """

    target: str
    directory: Path
    parts: int
    samples: int
    precision: Literal["fp64", "fp32"]
    timeout_seconds: float
    command: tuple[str, ...] | None = None


def build_verify_request(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    parts: int | None = None,
    samples: int | None = None,
    precision: Literal["fp64", "fp32"] | None = None,
    trial_timeout: float | None = None,
    directory: Path | None = None,
    spelled: Spelling = str,
) -> VerifyRequest:
    """Build the question.

    Args:
        target: The file, as text or path; or a command as a sequence of words.
        parts: Equal micro-batches; None for 4.
        samples: Samples of the batch; None for two a part.
        precision: `fp64`, or `fp32` for models that take nothing else; None for `fp64`. A command has its own.
        trial_timeout: Seconds; None for 300.
        directory: Where relative references start; None for the working directory.
        spelled: How an error names a parameter.

    Raises:
        UsageError: The samples cannot be cut so, or a command is given a precision.
    """
    command = None if isinstance(target, str | os.PathLike) else tuple(target)
    if command is not None and precision is not None:
        raise UsageError(
            f"`{spelled('precision')}` is for files, and a command is verified",
            hint="drop it; a command computes as it does, but for autocast",
        )
    parts = DEFAULT_PARTS if parts is None else whole_number(spelled("parts"), parts)
    samples = parts * _SAMPLES_PER_PART if samples is None else whole_number(spelled("samples"), samples)
    if parts < 2:  # noqa: PLR2004
        raise UsageError(f"`{spelled('parts')}` is {parts}, and one part is the whole batch", hint="give 2 or more")
    if samples % parts or samples < _SAMPLES_PER_PART * parts:
        raise UsageError(
            f"{samples} samples cannot be cut into {parts} equal micro-batches of {_SAMPLES_PER_PART} or more",
            hint=f"give `{spelled('samples')}` a multiple of {parts}, from {_SAMPLES_PER_PART * parts} on",
        )
    if samples > _LARGEST_BATCH:
        raise UsageError(
            f"`{spelled('samples')}` is {samples}, more than {_LARGEST_BATCH:,} samples in one optimizer step",
            hint="a few samples a part show whether accumulating is equal",
        )
    return VerifyRequest(
        target=os.fspath(target) if isinstance(target, str | os.PathLike) else command_line(target),
        directory=Path.cwd() if directory is None else directory,
        parts=parts,
        samples=samples,
        precision=precision or "fp64",
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if trial_timeout is None else trial_timeout,
        command=command,
    )


def verify(
    request: VerifyRequest,
    progress: Progress,
    *,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
) -> VerifyDocument:
    """Judge whether accumulated micro-batches of a target train what the whole batch would.

    Args:
        request: The question.
        progress: Told of the one stage.
        stop: Ends it from another thread.
        start: Starts the worker; None for a fresh interpreter.

    Raises:
        TargetError: The user's file or command is at fault.
        UsageError: The batch cannot be cut by its samples.
        NoAnswerError: It cannot be afforded on this CPU, a crash, or the time limit.
        KeyboardInterrupt: The stop was set.
    """
    if request.command is not None:
        result, versions = verify_command(request, progress, stop)
        # A command is its own loop: what it does not weigh, it trains without.
        wrong = result.verdict == "equal_if_weighted"
        code = EXIT_GATE if wrong else _EXIT_CODES.get(result.verdict, EXIT_OK)
        return VerifyDocument("verify", result.verdict, code, {"oomdoctor": __version__, **versions}, result)
    reference = parse_reference(request.target, directory=request.directory, verb="verify")
    # The arithmetic has to be real and in double precision: no GPU is seen, and no null GPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    question = VerifyTarget(
        reference, request.samples, request.parts, request.precision, limit_seconds=request.timeout_seconds
    )
    with WorkerProcess(environment, stop, start) as worker:
        progress.stage(f"comparing {request.parts} micro-batches of {request.target} with the whole batch")
        found = worker.ask(question, what="the verification", timeout_seconds=request.timeout_seconds)
    code = _EXIT_CODES.get(found.result.verdict, EXIT_OK)
    versions = {"oomdoctor": __version__, **found.versions}
    return VerifyDocument("verify", found.result.verdict, code, versions, found.result)
