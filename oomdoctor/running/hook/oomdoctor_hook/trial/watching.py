"""Begin to watch once torch has been imported."""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import os
import sys
from typing import Any

from .. import agreeing, resting
from ..guard import guarded
from . import backward, batch, device, draws, ends, modes, settings, steps
from .channel import CHANNEL
from .phases import PHASES


def watch(torch: Any) -> None:
    """Tell that torch is there, and listen to what training does with it."""
    CHANNEL.begin_to_speak = guarded(lambda: _tell_start(torch))
    if not CHANNEL.quiet:
        CHANNEL.begin_to_speak()
    guarded(_describe)()
    guarded(steps.watch)(torch)
    guarded(backward.watch)(torch)
    guarded(modes.watch)(torch)
    guarded(batch.watch)(torch)
    guarded(draws.watch)(torch)
    guarded(resting.watch)()
    guarded(agreeing.watch)()
    guarded(ends.watch)(torch)
    os.register_at_fork(after_in_child=guarded(_after_fork))
    torch.cuda._lazy_call(guarded(lambda: device.begin(torch)))  # noqa: SLF001 - at once where CUDA is initialised


def _tell_start(torch: Any) -> None:
    CHANNEL.send({
        "event": "started",
        "rank": _number("RANK", 0),
        "world_size": _number("WORLD_SIZE", 1),
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    })  # fmt: skip


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _describe() -> None:
    if settings.DESCRIBE:
        from ..forking import describe  # noqa: PLC0415 - for the first trial alone

        describe.at_torch_import()


def _after_fork() -> None:
    """A forked process has its own steps and its own end."""
    PHASES.reset()
    steps.STEPS.reset()
    device.DEVICE.reset()
    ends.reset()
