"""The last word of a process that trains: everything that was measured."""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..guard import FAILURES, guarded
from . import null_gpu, peaks, settings
from .channel import CHANNEL
from .device import DEVICE
from .history import HISTORY
from .phases import BACKWARD, EVALUATION, LOAD, OPTIMIZER, PHASES
from .steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .history import Part


def send(torch: Any, ending: str, error: dict[str, Any] | None = None) -> None:
    """Tell everything that was measured.

    Args:
        torch: The module.
        ending: `steps`, `error` or `exit`; `step` where memory ran out and a step was done all the same.
        error: What nobody handles, as `ends` describes it.
    """
    message: dict[str, Any] = {
        "event": "measured",
        "ending": ending,
        "steps": STEPS.done,
        "idle_optimizers": len(STEPS.idle),
        "optimizer": STEPS.optimizer,
        "parameter_bytes": STEPS.parameter_bytes,
        "gradient_bytes": STEPS.gradient_bytes,
        "cuda": DEVICE.is_begun,
        "error": error,
        "zeros_read": null_gpu.reads(),
        "unknown_calls": null_gpu.unknown_calls(),
        "process": guarded(_process)(),
        **_memory(torch, has_failed=error is not None),
    }
    CHANNEL.send({**message, "failures": FAILURES})


def _memory(torch: Any, *, has_failed: bool) -> dict[str, Any]:
    highest = (guarded(peaks.now)(torch) if DEVICE.is_begun else None) or peaks.Peaks()
    parts = guarded(HISTORY.read)(PHASES.borders) or []
    used = [part for part in parts if part.allocations or part.border.phase in (LOAD, OPTIMIZER)]
    trained = [part for part in used if part.border.phase not in (LOAD, EVALUATION)]
    return {
        "peak_allocated_bytes": highest.allocated_bytes,
        "peak_reserved_bytes": highest.reserved_bytes,
        "alloc_retries": highest.retries,
        "ooms": highest.ooms,
        "fixed_bytes": guarded(_fixed_bytes)(used, STEPS.done),
        "training_peak_bytes": _highest(trained),
        "evaluation_peak_bytes": _highest(part for part in used if part.border.phase == EVALUATION),
        "phases": _phases(used, _failed(used, has_failed=has_failed)),
    }


def _highest(parts: Iterable[Part]) -> int | None:
    return max((part.peak_bytes for part in parts), default=None)


def _failed(parts: Sequence[Part], *, has_failed: bool) -> set[tuple[int, str]]:
    """The iterations and phases that did not get to their end."""
    last = {(part.border.iteration, part.border.phase) for part in parts[-1:]} if has_failed else set()
    return DEVICE.failed | last


def _phases(parts: Iterable[Part], failed: set[tuple[int, str]]) -> list[dict[str, Any]]:
    """One for each iteration and phase, in the order in which they first began; micro-steps share theirs."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for part in parts:
        key = (part.border.iteration, part.border.phase)
        one = found.setdefault(key, {"iteration": key[0], "phase": key[1], "peak_allocated_bytes": 0})
        one["peak_allocated_bytes"] = max(one["peak_allocated_bytes"], part.peak_bytes)
        one["end_allocated_bytes"] = part.end_bytes
    for key in failed & set(found):
        # What a failure's unwinding frees, autograd's threads free when they come to it: no two runs would agree.
        found[key]["end_allocated_bytes"] = found[key]["peak_allocated_bytes"]
    return list(found.values())


def _fixed_bytes(parts: Sequence[Part], iteration: int) -> int | None:
    """What stays from one micro-step to the next once there is everything, gradients included where they accumulate."""
    own = [part for part in parts if part.border.iteration == iteration and part.border.phase != EVALUATION]
    backwards = [index for index, part in enumerate(own) if part.border.phase == BACKWARD]
    if iteration < 2 or not backwards:  # noqa: PLR2004 - the first makes the optimizer's state
        return None
    forward = own[backwards[0] + 1 :] if len(backwards) > 1 else own[: backwards[0]]
    return min((part.lowest_bytes for part in forward), default=None)


def _process() -> Any:
    if not settings.DESCRIBE:
        return None
    from ..forking import describe

    return describe.describe()
