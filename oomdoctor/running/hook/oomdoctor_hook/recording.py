"""The history of memory from the moment CUDA is initialised, and each time that the allocator finds none.

Nothing here initialises CUDA: what has to wait for it is queued with torch, which runs it when the program gets there.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from . import agreeing, endings, frames, resting, settings, steps
from .guard import guarded
from .statistics import step_statistics
from .tensors import live_categories

_KEPT_EVENTS = 16


class Ooms:
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


OOMS = Ooms()


def watch(torch: Any) -> None:
    """Begin once `torch` has been imported."""
    guarded(steps.watch)(torch)
    guarded(agreeing.watch)()
    guarded(resting.watch)()
    guarded(endings.watch)(torch)
    os.register_at_fork(after_in_child=guarded(_after_fork))
    torch.cuda._lazy_call(guarded(lambda: _start(torch)))  # noqa: SLF001 - at once where CUDA is initialised


def _start(torch: Any) -> None:
    guarded(limit_memory)(torch)
    guarded(_record_history)(torch)
    torch._C._cuda_attach_out_of_memory_observer(_make_observer(torch))  # noqa: SLF001


def _record_history(torch: Any) -> None:
    entries = settings.MAX_ENTRIES
    if entries > 0:
        frames.begin(torch, entries)
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
    note = guarded(_note)

    def observe(device: int, tried: int, total: int, free: int) -> None:
        try:
            OOMS.count += 1
            note(torch, device, tried, total, free)
        except BaseException:  # noqa: BLE001, S110 - from here an error would go through C++ code that expects none
            pass

    return observe


def _note(torch: Any, device: int, tried: int, total: int, free: int) -> None:
    event = {
        "time_us": time.time_ns() // 1000,
        "steps_done": steps.STEPS.done,
        "tried_bytes": tried,
        "total_bytes": total,
        "free_bytes": free,
    }
    event.update(step_statistics(torch, device))
    OOMS.last.append(event)
    endings.expect()
    frames.restore()  # what was going on has ended, and the program may go on
    OOMS.categories = live_categories(torch)


def _after_fork() -> None:
    """A forked process has its own end and its own steps, and no CUDA."""
    frames.FRAMES.forget()
    OOMS.reset()
    steps.STEPS.reset()
    endings.reset()
