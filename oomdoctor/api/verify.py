"""`oomdoctor verify` as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from oomdoctor.option_values import by_parameters
from oomdoctor.progress import SilentProgress
from oomdoctor.verification.run import DEFAULT_PARTS, DEFAULT_TIMEOUT_SECONDS, build_verify_request
from oomdoctor.verification.run import verify as run_verify

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from oomdoctor.progress import Progress
    from oomdoctor.results import VerifyDocument


@by_parameters
def verify(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    parts: int = DEFAULT_PARTS,
    samples: int | None = None,
    precision: Literal["fp64", "fp32"] | None = None,
    trial_timeout: float = DEFAULT_TIMEOUT_SECONDS,
    progress: Progress | None = None,
) -> VerifyDocument:
    """Judge whether accumulating micro-batches trains what the whole batch would.

        verify("model.py").result.verdict

    Args:
        target: The file to verify: `model.py`, `pkg.module`, `model.py:build_model(layers=2)`, or an example's name. Or
            a command, as a list of words with `{micro_batch}` and `{accumulation_steps}` in them.
        parts: Equal micro-batches that the batch is cut into.
        samples: Samples of the whole batch, a multiple of the parts; None for two a part.
        precision: Type that a file is computed in: `fp64`, or `fp32` for models that take nothing else; None for
            `fp64`. A command has its own.
        trial_timeout: Longest time for a file, or for each run of a command, in seconds.
        progress: Told of each stage; None for silence.

    Returns:
        The document that the command writes with `--json`.

    Raises:
        UsageError: The batch cannot be cut so, or the command does not take both sizes.
        TargetError: The user's file or command is at fault.
        NoAnswerError: It cannot be afforded on this CPU, a null GPU, a crash, or the time limit.
    """
    request = build_verify_request(
        target, parts=parts, samples=samples, precision=precision, trial_timeout=trial_timeout
    )
    return run_verify(request, progress or SilentProgress())
