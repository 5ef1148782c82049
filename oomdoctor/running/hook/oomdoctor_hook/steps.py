"""Optimizer steps of this process, counted through torch's global hook, and the memory after each.

What else wants to know of a step can ask for it with `when_done`; nothing here is about out of memory.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import frames
from .guard import guarded
from .statistics import step_statistics

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT = 32

_listeners: list[Callable[[int], None]] = []


class Steps:
    """What has been seen of a process's steps.

    Attributes:
        done: Calls of `step` that returned, of all optimizers.
        last: Memory after the last of them, oldest first.
    """

    def __init__(self) -> None:
        self.done = 0
        self.last: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.done = 0
        self.last.clear()


STEPS = Steps()


def watch(torch: Any) -> None:
    """Count steps from now on; torch 2.0 is the first that can be asked."""
    module = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_make_hook(torch))
        module.register_optimizer_step_pre_hook(frames.before_step)


def when_done(listener: Callable[[int], None]) -> None:
    """Call `listener` with the number of steps done, after each of them."""
    _listeners.append(listener)


def _make_hook(torch: Any) -> Callable[..., None]:
    record = guarded(_record)

    def after_step(_optimizer: Any, _arguments: Any, _named: Any) -> None:
        STEPS.done += 1
        record(torch)
        frames.after_step(torch)
        for listener in _listeners:
            listener(STEPS.done)

    return after_step


def _record(torch: Any) -> None:
    if torch.cuda.is_initialized():
        moment = {"step": STEPS.done, "time_us": time.time_ns() // 1000}
        moment.update(step_statistics(torch, torch.cuda.current_device()))
        STEPS.last.append(moment)
