"""Report of a trial's process: everything that was measured, sent after the last step or when the process ends.

One that ends because memory ran out stands still then, as after the last step: the trial is over, and what the program
has registered with `atexit` shall not write into it.
"""


# ruff: noqa: ANN401, PLC0415 - torch and what programs hand over have no type here
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import null_gpu, oom_errors, phase_meter, settings
from .channel import CHANNEL
from .crash_report import full_traceback
from .exception_hooks import wrap_exit
from .guard import FAILURES, guarded
from .phase_meter import BACKWARD, EVALUATION, HISTORY, LOAD, OPTIMIZER, PHASES
from .training_hooks import STEPS
from .trial_device import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .phase_meter import PhaseMemory


def send_report(torch: Any, ending: str, error: dict[str, Any] | None = None) -> None:
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
        "zeros_read": null_gpu.null_gpu_reads(),
        "unknown_calls": null_gpu.unknown_calls(),
        "process": guarded(_process_description)(),
        **_memory(torch, has_failed=error is not None),
    }
    CHANNEL.send({**message, "failures": FAILURES})


def _memory(torch: Any, *, has_failed: bool) -> dict[str, Any]:
    highest = (guarded(phase_meter.peaks_now)(torch) if DEVICE.is_begun else None) or phase_meter.Peaks()
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


def _highest(parts: Iterable[PhaseMemory]) -> int | None:
    return max((part.peak_bytes for part in parts), default=None)


def _failed(parts: Sequence[PhaseMemory], *, has_failed: bool) -> set[tuple[int, str]]:
    """The iterations and phases that did not get to their end."""
    last = {(part.border.iteration, part.border.phase) for part in parts[-1:]} if has_failed else set()
    return DEVICE.failed | last


def _phases(parts: Iterable[PhaseMemory], failed: set[tuple[int, str]]) -> list[dict[str, Any]]:
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


def _fixed_bytes(parts: Sequence[PhaseMemory], iteration: int) -> int | None:
    """What stays from one micro-step to the next once there is everything, gradients included where they accumulate."""
    own = [part for part in parts if part.border.iteration == iteration and part.border.phase != EVALUATION]
    backwards = [index for index, part in enumerate(own) if part.border.phase == BACKWARD]
    if iteration < 2 or not backwards:  # noqa: PLR2004 - the first makes the optimizer's state
        return None
    forward = own[backwards[0] + 1 :] if len(backwards) > 1 else own[: backwards[0]]
    return min((part.lowest_bytes for part in forward), default=None)


def _process_description() -> Any:
    if not settings.DESCRIBE:
        return None
    from .forking import admission

    return admission.describe_process()


class EndState:
    """What is known of this process's end.

    Attributes:
        torch: The module, once it is imported.
        is_told: Whether the last word is said.
        prepared: The error that was being handled when the program asked to leave, and the steps done by then.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.process = os.getpid()
        self.is_told = False
        self.prepared: tuple[dict[str, Any], int] | None = None


END_STATE = EndState()
reset_end = END_STATE.reset


def watch_end(torch: Any) -> None:
    """Tell how this process ends."""
    END_STATE.torch = torch
    wrap_exit(guarded(_note_exit))
    # Called before `atexit`, and before threads are waited for. In Python's own hands, and not in 3.8.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(guarded(_at_shutdown))
    atexit.register(guarded(_at_exit))


def child_ended(error: BaseException | None) -> None:
    """A child process of multiprocessing has run its function."""
    if END_STATE.torch is not None and not CHANNEL.quiet:
        _send_last(None if error is None else _error_chain(error))


def _note_exit(status: Any) -> None:
    """Keep what is being handled when the program asks to leave; it may still be talked out of it.

    Text alone is kept: to hold the error would hold its frames and all the tensors in them.
    """
    error = sys.exc_info()[1]
    if status not in (None, 0) and error is not None and not isinstance(error, SystemExit):
        END_STATE.prepared = _error_chain(error), STEPS.done


def _at_shutdown() -> None:
    error = _died_of()
    if error is not None:
        _send_last(error)
        if DEVICE.ooms and os.getpid() == END_STATE.process:
            _stand_still()


def _at_exit() -> None:
    _send_last(_died_of())


def _died_of() -> dict[str, Any] | None:
    # `last_exc` is there from 3.12 on. Both are set by Python itself, before it calls whatever hook there is.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        return _error_chain(error)
    if END_STATE.prepared is not None and END_STATE.prepared[1] == STEPS.done:  # training did not go on after all
        return END_STATE.prepared[0]
    return None


def _stand_still() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or the program's own
            stream.flush()
    CHANNEL.stand_still()


def _send_last(error: dict[str, Any] | None) -> None:
    if END_STATE.is_told or STEPS.is_over:
        return
    END_STATE.is_told = True
    send_report(END_STATE.torch, "exit" if error is None else "error", error)
    CHANNEL.flush()


def _error_chain(error: BaseException) -> dict[str, Any]:
    links = [
        {"types": [_name(kind) for kind in type(link).__mro__], "text": oom_errors.text_of(link)}
        for link in oom_errors.walk(error)
    ]
    return {"links": links, "traceback": guarded(full_traceback)(error) or ""}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
