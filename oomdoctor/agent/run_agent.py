"""Agent of `oomdoctor run`: the memory history, optimizer steps, and each time that memory runs out.

Nothing here initialises CUDA: what has to wait for it is queued with torch, which runs it when the program gets there.

What else wants to know of a step can ask for it with `when_done`; nothing here is about out of memory.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import exception_hooks, history_frames, null_gpu, settings
from .guard import guarded
from .memory_stats import live_categories, step_statistics

if TYPE_CHECKING:
    from collections.abc import Callable


_KEPT_STEPS = 32

_listeners: list[Callable[[int], None]] = []


class StepHistory:
    """What has been seen of a process's steps.

    Attributes:
        done: Calls of `step` that returned, of all optimizers.
        last: Memory after the last of them, oldest first.
    """

    def __init__(self) -> None:
        self.done = 0
        self.last: deque[dict[str, Any]] = deque(maxlen=_KEPT_STEPS)

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.done = 0
        self.last.clear()


STEPS = StepHistory()


def watch_steps(torch: Any) -> None:
    """Count steps from now on; torch 2.0 is the first that can be asked."""
    module = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_make_hook(torch))
        module.register_optimizer_step_pre_hook(history_frames.before_step)


def when_step_done(listener: Callable[[int], None]) -> None:
    """Call `listener` with the number of steps done, after each of them."""
    _listeners.append(listener)


def _make_hook(torch: Any) -> Callable[..., None]:
    record = guarded(_record_step)

    def after_step(_optimizer: Any, _arguments: Any, _named: Any) -> None:
        STEPS.done += 1
        record(torch)
        history_frames.after_step(torch)
        for listener in _listeners:
            listener(STEPS.done)

    return after_step


def _record_step(torch: Any) -> None:
    if torch.cuda.is_initialized():
        moment = {"step": STEPS.done, "time_us": time.time_ns() // 1000}
        moment.update(step_statistics(torch, torch.cuda.current_device()))
        STEPS.last.append(moment)


_KEPT_EVENTS = 16


class OomEvents:
    """What the allocator said about the times that it found no memory.

    Attributes:
        count: How often.
        last: The last of them, oldest first.
        categories: At the last one, what the memory of parameters, gradients and optimizer state was.
        records_history: Whether the history of memory is recorded.
    """

    def __init__(self) -> None:
        self.records_history = False
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.count = 0
        self.last: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self.categories: dict[int, str] = {}


OOMS = OomEvents()


def watch(torch: Any) -> None:
    """Begin once `torch` has been imported."""
    guarded(watch_steps)(torch)
    guarded(null_gpu.patch_ranks)()
    guarded(null_gpu.wait_for_backward_at_exit)()
    guarded(exception_hooks.watch_end)(torch)
    os.register_at_fork(after_in_child=guarded(_after_fork))
    torch.cuda._lazy_call(guarded(lambda: _begin_with_cuda(torch)))  # noqa: SLF001 - at once where CUDA is initialised


def _begin_with_cuda(torch: Any) -> None:
    guarded(limit_memory)(torch)
    guarded(_record_history)(torch)
    torch._C._cuda_attach_out_of_memory_observer(_make_observer(torch))  # noqa: SLF001


def _record_history(torch: Any) -> None:
    entries = settings.MAX_ENTRIES
    if entries > 0:
        history_frames.begin(torch, entries)
        OOMS.records_history = True


def limit_memory(torch: Any) -> None:
    """Keep PyTorch to what was asked for, on every device."""
    limit = settings.MEMORY_BYTES
    if limit > 0:
        for device in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


def _make_observer(torch: Any) -> Any:
    """Make what the allocator calls before it raises, when nothing has been unwound yet."""
    note = guarded(_note_oom)

    def observe(device: int, tried: int, total: int, free: int) -> None:
        try:
            OOMS.count += 1
            note(torch, device, tried, total, free)
        except BaseException:  # noqa: BLE001, S110 - from here an error would go through C++ code that expects none
            pass

    return observe


def _note_oom(torch: Any, device: int, tried: int, total: int, free: int) -> None:
    event = {
        "time_us": time.time_ns() // 1000,
        "steps_done": STEPS.done,
        "tried_bytes": tried,
        "total_bytes": total,
        "free_bytes": free,
    }
    event.update(step_statistics(torch, device))
    OOMS.last.append(event)
    exception_hooks.wrap_ends()
    history_frames.restore()  # what was going on has ended, and the program may go on
    OOMS.categories = live_categories(torch)


def _after_fork() -> None:
    """A forked process has its own end and its own steps, and no CUDA."""
    history_frames.FRAME_RECORDING.forget()
    OOMS.reset()
    STEPS.reset()
    exception_hooks.reset_end()
