"""`oomdoctor probe` as a function."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from oomdoctor.command.template import command_line
from oomdoctor.errors import UsageError
from oomdoctor.progress import SilentProgress
from oomdoctor.request import (
    DEFAULT_HEADROOM,
    DEFAULT_STEPS,
    DEFAULT_TRIAL_TIMEOUT_SECONDS,
    PRECISIONS,
    Precision,
    ProbeRequest,
)
from oomdoctor.search.accumulation import whole_number
from oomdoctor.trial.answer import document_of
from oomdoctor.trial.probe import probe as run_probe
from oomdoctor.units import parse_fraction, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.progress import Progress
    from oomdoctor.results import ProbeDocument


Word = TypeVar("Word", bound=str)
EngineName = Literal["auto", "cuda", "null", "trace"]
_ENGINES: tuple[EngineName, ...] = ("auto", "cuda", "null", "trace")


def probe(  # noqa: PLR0913 - one parameter an option
    target: str | os.PathLike[str] | Sequence[str],
    *,
    target_batch: int,
    world_size: int = 1,
    gpu: str | None = None,
    device: int | str | None = None,
    memory: int | str | None = None,
    precision: Precision = "fp32",
    optimizer: str | None = None,
    headroom: float | str = DEFAULT_HEADROOM,
    engine: EngineName = "auto",
    trial_timeout: float = DEFAULT_TRIAL_TIMEOUT_SECONDS,
    steps: int | None = None,
    fresh: bool = False,
    guide: bool = True,
    progress: Progress | None = None,
) -> ProbeDocument:
    """Find the largest micro-batch that fits, and the accumulation steps that reach the target batch.

    The trials run in a process of their own; this one needs neither torch nor a GPU.

        plan = probe("model.py", target_batch=256, gpu="rtx-4090").plan

    Args:
        target: The file to probe: `model.py`, `pkg.module`, `model.py:build_model(depth=24)`, or an example's name. Or
            a command, as a list of words with `{micro_batch}` in one of them.
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share the target batch.
        gpu: Card to ask about, such as `rtx-4090`; needs no GPU. None for the GPU of this machine.
        device: Index or UUID of a GPU of this machine.
        memory: Capacity to ask about: bytes, or a size such as `16GiB`.
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16` (with a gradient scaler).
        optimizer: A `torch.optim` class, where the file builds none; None for AdamW.
        headroom: Part of the capacity that the recommended size leaves free: a number in [0, 1), or `5%`.
        engine: `auto`, `cuda` for the local GPU, or `null` for a null GPU.
        trial_timeout: Longest time that a trial may take, in seconds.
        steps: Optimizer steps after which a trial of a command is ended; None for 3.
        fresh: Whether each trial of a command starts its Pythons anew.
        guide: Whether the search on a real GPU begins at the size that a trace of a file's step foretells.
        progress: Told of each stage and trial; None for silence.

    Returns:
        The document that the command writes with `--json`; `.plan` is its accumulation plan.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
    """
    command = _command(target)
    request = ProbeRequest(
        target=command_line(command) if command is not None else _path(target),
        command=command,
        steps=DEFAULT_STEPS if steps is None else whole_number("steps", steps),
        fresh=fresh,
        guide=guide,
        directory=Path.cwd(),
        target_batch=whole_number("target_batch", target_batch),
        world_size=whole_number("world_size", world_size),
        precision=_one_of("precision", precision, PRECISIONS),
        optimizer=_text("optimizer", optimizer),
        headroom=parse_fraction(str(headroom), option="headroom"),
        gpu=_text("gpu", gpu),
        device=_device(device),
        memory_bytes=_bytes(memory),
        engine=_one_of("engine", engine, _ENGINES),
        trial_timeout_seconds=_seconds(trial_timeout),
    )
    return document_of(run_probe(request, progress or SilentProgress()))


def _bytes(memory: int | str | None) -> int | None:
    """Bytes are as good as a size with its unit, and held to the same limits; parts of a byte are a mistake."""
    if memory is None:
        return None
    text = memory if isinstance(memory, str) else f"{whole_number('memory', memory)}B"
    return parse_size(text, option="memory")


def _command(target: str | os.PathLike[str] | Sequence[str]) -> tuple[str, ...] | None:
    if isinstance(target, list | tuple) and target and all(isinstance(word, str) for word in target):
        return tuple(target)
    return None


def _path(target: object) -> str:
    path = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(path, str):
        raise UsageError(
            f"`target` is `{target!r}`, which names no file", hint="give the file to probe as text or path"
        )
    return path


def _text(name: str, value: str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"`{name}` is `{value!r}`, which is no text", hint="give its name as text")


def _device(device: int | str | None) -> str | None:
    if device is None or isinstance(device, str):
        return device
    return str(whole_number("device", device))


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise UsageError(f"`trial_timeout` is `{value!r}`, which is no length of time", hint="give seconds, above 0")


def _one_of(name: str, value: Word, words: tuple[Word, ...]) -> Word:
    if value not in words:
        known = ", ".join(f"`{word}`" for word in words)
        raise UsageError(f"`{name}` is `{value!r}`, which it cannot be", hint=f"one of {known}")
    return value
