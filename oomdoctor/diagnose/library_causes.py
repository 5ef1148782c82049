"""Causes told by libraries beside PyTorch's allocator: quantized models, NCCL's buffers, compiled programs of XLA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.evidence import held_by_process
from oomdoctor.diagnose.text.numbers import SIZE, read_size
from oomdoctor.results import Cause, CauseId, Confidence
from oomdoctor.units import MIB, format_size

if TYPE_CHECKING:
    from oomdoctor.diagnose.evidence import Situation

_COLLECTIVES: Final = re.compile(r"torch/distributed/(?:distributed_c10d|c10d_logger)\.py$")
_SMALL_BYTES: Final = 64 * MIB  # of a collective: what it gathers is larger, what it needs for itself is not
_PLAN_LINES: Final = 40  # of XLA's buffer assignment below its error
_PLAN: Final = {
    name: re.compile(rf"{name}allocation:({SIZE})") for name in ("total", "maybe_live_out", "preallocatedtemp")
}


def quantized_offload(situation: Situation) -> Cause | None:
    """A quantized model did not fit, so that its loader placed a part of it on the host."""
    if situation.kind != "quantized-offload":
        return None
    text = "Not all modules of the quantized model fit on the device, and the loader may not leave them on the host"
    return Cause(CauseId.MODEL_TOO_LARGE, Confidence.CERTAIN, text)


def library_buffers(situation: Situation) -> Cause | None:
    """NCCL, or a collective that needs next to nothing, found no room beside what PyTorch holds."""
    tried = situation.facts.tried_bytes
    asked = "" if tried is None else f" {format_size(tried)} for it"
    if situation.kind == "nccl-allocation":
        text = f"NCCL takes its buffers from the driver, beside PyTorch's memory, and found no room{asked}"
        return Cause(CauseId.LIBRARY_BUFFERS, Confidence.LIKELY, text)
    frames = () if situation.event is None else situation.event.frames
    in_collective = bool(frames) and _COLLECTIVES.search(frames[-1].path.replace("\\", "/")) is not None
    if not situation.on_gpu or not in_collective or tried is None or tried > _SMALL_BYTES:
        return None
    numbers = held_by_process(situation)
    text = f"`{frames[-1].function}` of torch.distributed needs little, and the device was full{numbers}"
    return Cause(CauseId.LIBRARY_BUFFERS, Confidence.LIKELY, text)


def compiled_program(situation: Situation) -> Cause | None:
    """XLA could not place a program, whose needs it prints below the error, or TensorFlow a tensor."""
    if not situation.on_gpu or situation.event is None or not (situation.is_xla or situation.is_tensorflow):
        return None
    window, message = situation.event.window, situation.event.message
    text = "".join("".join(window.lines[message.first : message.last + 1 + _PLAN_LINES]).lower().split())
    sizes = {name: read_size(found[1]) for name, pattern in _PLAN.items() if (found := pattern.search(text))}
    total, output, temporary = (sizes.get(name) for name in _PLAN)
    if total is not None:
        parts = [(output, "outputs"), (temporary, "temporaries")]
        listed = " and ".join(f"{format_size(size)} for {name}" for size, name in parts if size)
        needs = f"The compiled program needs {format_size(total)} in all{f', {listed}' if listed else ''}"
        return Cause(CauseId.BATCH_TOO_LARGE, Confidence.LIKELY, needs + held_by_process(situation))
    needs = "What the program needs does not fit in what the framework may take of the device"
    return Cause(CauseId.BATCH_TOO_LARGE, Confidence.POSSIBLE, needs + held_by_process(situation))
