"""What a reader should know about the numbers, and what to collect where the evidence does not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.vocabulary import vocabulary
from oomdoctor.results import CauseId, Confidence, NextStep
from oomdoctor.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.results import Cause

_SEGMENTS: Final = {
    2 * MIB: "a tensor of at most 1 MiB",
    20 * MIB: "a tensor of 1 to 10 MiB",
}
_TORCH_ALLOCATOR_KINDS: Final = ("cuda-allocator", "hip-allocator")


def notes(situation: Situation) -> Iterator[str]:
    """What the numbers mean where they do not mean what they seem to."""
    facts = situation.facts
    if situation.kind in _TORCH_ALLOCATOR_KINDS and facts.tried_bytes in _SEGMENTS:
        yield (
            f"{format_size(facts.tried_bytes)} is the segment that PyTorch asked the driver for, "
            f"to place {_SEGMENTS[facts.tried_bytes]} in it"
        )
    held = situation.held_bytes
    if held is not None and facts.total_bytes is not None and held > facts.total_bytes:
        yield (
            f"PyTorch holds {format_size(held)}, more than the device's {format_size(facts.total_bytes)}: the driver "
            "has moved some of it to system memory, as it does on Windows, and everything is slow from there on"
        )
    if facts.own_pid is not None:
        yield f"process {facts.own_pid} is this program itself; inside a container its process id is another"
    if any(process.used_bytes is None for process in facts.other_processes):
        yield "the driver could not tell how much memory a listed process holds"
    if facts.private_pool_bytes:
        yield f"{format_size(facts.private_pool_bytes)} of what is allocated are in private pools, such as CUDA graphs'"
    if situation.batch_size == 1 and situation.on_gpu:
        yield "the batch is a single sample already, so that a smaller batch is no remedy"


def next_steps(situation: Situation, causes: Sequence[Cause]) -> Iterator[NextStep]:
    """What to collect next, where no cause is more than possible."""
    if not situation.is_oom and situation.row is not None and situation.row.needs_pressure:
        yield NextStep(
            "whether memory was full at that moment, which its words leave open", "oomdoctor run -- python train.py"
        )
    if not situation.is_oom or not situation.is_torch or not _open(causes):
        return
    if situation.device == "cpu":
        yield NextStep("whether the kernel killed it, and what it held then", "dmesg -T | grep -i -A2 'out of memory'")
        return
    words = vocabulary(situation.device)
    if situation.facts.total_bytes is None or situation.facts.free_bytes is None:
        yield NextStep("whether other processes hold the device", words.status)
    if situation.device == "cuda" and situation.snapshot is None:
        what = "what fills the memory, line by line, at the moment it runs out"
        yield NextStep(what, "oomdoctor run -- python train.py")
    if situation.trend is None and not situation.is_server:
        what = "whether memory grows from step to step"
        yield NextStep(what, f'print(step, "memory", {words.allocated} // 2**20, "MiB")')


def _open(causes: Sequence[Cause]) -> bool:
    return all(cause.confidence is Confidence.POSSIBLE or cause.id is CauseId.UNKNOWN for cause in causes)
