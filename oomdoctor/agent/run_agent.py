"""Agent of `oomdoctor run`: the memory history, optimizer steps, and each time that the allocator finds no memory.

Nothing here initialises CUDA: what has to wait for it is queued with torch, which runs it when the program gets there.
Until memory runs out for the first time no exception hook is replaced, so a program finds `sys.excepthook` and
`sys.exit` as they are without us.
"""

# ruff: noqa: ANN401, PLC0415, SLF001 - torch has no type here, nor public ways; most programs never run out of memory

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

from . import exception_hooks, lone_rank, null_gpu, settings
from .guard import guarded
from .history_frames import FrameRecording
from .memory_stats import PeakKeeper, limit_memory, live_categories, step_statistics
from .oom_errors import find_oom

_KEPT_STEPS = 32
_KEPT_OOMS = 16


class RunAgent:
    """Watches one process from the import of torch to its end.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._frames = FrameRecording(torch)
        self._records_history = False
        self._is_end_watched = False
        self._peaks: PeakKeeper | None = None  # of a rank that runs alone
        self._reset()

    def _reset(self) -> None:
        """Begin again, as a process does that was forked; it has its own end and its own steps, and no CUDA."""
        self._frames.forget()
        self._steps_done = 0
        self._last_steps: deque[dict[str, Any]] = deque(maxlen=_KEPT_STEPS)
        self._ooms = 0
        self._last_ooms: deque[dict[str, Any]] = deque(maxlen=_KEPT_OOMS)
        self._categories: dict[int, str] = {}
        self._is_reported = False
        self._prepared: dict[str, Any] | None = None  # a report that waits for the process to really end

    def begin(self) -> None:
        """Watch from now on; steps are counted by torch's global hook, which torch 2.0 is the first to have."""
        guarded(self._watch_steps)()
        guarded(null_gpu.begin)()
        guarded(null_gpu.wait_for_backward_at_exit)()
        atexit.register(guarded(self._at_exit))
        os.register_at_fork(after_in_child=guarded(self._reset))
        self._torch.cuda._lazy_call(guarded(self._begin_with_cuda))  # at once where CUDA is initialised

    def _begin_with_cuda(self) -> None:
        limits = settings.MEMORY_BYTES, settings.CARD_BYTES, settings.RESERVE_BYTES
        guarded(limit_memory)(self._torch, *limits)
        if lone_rank.is_lone():
            self._peaks = PeakKeeper(self._torch, range(self._torch.cuda.device_count()))
            guarded(self._peaks.watch)()
        if settings.MAX_ENTRIES > 0:
            guarded(self._frames.begin)(settings.MAX_ENTRIES)
            self._records_history = self._frames.is_recording
        self._torch._C._cuda_attach_out_of_memory_observer(self._observe_oom)

    # --- optimizer steps ---------------------------------------------------------------------------------------------

    def _watch_steps(self) -> None:
        record, restore_frames = guarded(self._record_step), guarded(self._frames.after_step)

        def after_step(_optimizer: Any, _arguments: Any, _named: Any) -> None:
            self._steps_done += 1
            record()
            restore_frames()

        module = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(after_step)
            module.register_optimizer_step_pre_hook(guarded(self._frames.before_step))

    def _record_step(self) -> None:
        if self._torch.cuda.is_initialized():
            moment = {"step": self._steps_done, "time_us": time.time_ns() // 1000}
            moment.update(step_statistics(self._torch, self._torch.cuda.current_device()))
            self._last_steps.append(moment)

    # --- memory runs out ---------------------------------------------------------------------------------------------

    @guarded
    def _observe_oom(self, device: int, tried: int, total: int, free: int) -> None:
        """Note that memory runs out; the allocator calls this before it raises, when nothing has been unwound yet."""
        with suppress(BaseException):  # from here an error would go through C++ code that expects none
            if null_gpu.is_in_workspace():
                return
            self._ooms += 1
            self._note_oom(device, tried, total, free)

    @guarded
    def _note_oom(self, device: int, tried: int, total: int, free: int) -> None:
        event = {
            "time_us": time.time_ns() // 1000,
            "steps_done": self._steps_done,
            "tried_bytes": tried,
            "total_bytes": total,
            "free_bytes": free,
        }
        event.update(step_statistics(self._torch, device))
        self._last_ooms.append(event)
        self._watch_end()
        self._frames.restore()  # what was going on has ended, and the program may go on
        self._categories = live_categories(self._torch)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _watch_end(self) -> None:
        """Watch the places where a program may end of an error."""
        if self._is_end_watched:
            return
        self._is_end_watched = True
        exception_hooks.wrap_hooks(self.report_death)
        exception_hooks.wrap_exit(guarded(self._note_exit))

    @guarded
    def report_death(self, error: BaseException | None, ending: str) -> None:
        """Write a report where `error`, which nobody handles, says that memory ran out.

        Args:
            error: The error that ended the program, a thread or a child process.
            ending: `exception`, `thread` or `child process`.
        """
        if self._is_reported or exception_hooks.is_interactive():
            return
        report = self._collect(error, ending)
        if report is not None:
            self._write(report)

    def _collect(self, error: BaseException | None, ending: str) -> dict[str, Any] | None:
        """Return a report; None where the error says nothing of memory."""
        oom = find_oom(error)
        if oom is None or error is None:
            return None
        from . import crash_report

        facts = crash_report.RunFacts(
            self._steps_done,
            list(self._last_steps),
            self._ooms,
            list(self._last_ooms),
            self._categories,
            settings.MAX_ENTRIES if self._records_history else 0,
        )
        return crash_report.collect_report(self._torch, error, oom, ending, facts)

    def _write(self, report: dict[str, Any]) -> None:
        from . import crash_report

        self._is_reported = True
        crash_report.write_report(report, self._torch, settings.DIRECTORY)

    def _note_exit(self, status: Any) -> None:
        """Keep the error that is handled when the program asks to leave; it may still catch `SystemExit`.

        Text alone is kept: to hold the error would hold its frames and all the tensors in them.
        """
        if status not in (None, 0) and not self._is_reported:
            self._prepared = self._collect(sys.exc_info()[1], "exit") or self._prepared

    def _at_exit(self) -> None:
        if self._peaks is not None:
            guarded(lone_rank.write_peaks)(self._peaks.now().values(), null_gpu.communicators())
        self.report_death(exception_hooks.last_error(), "exception")
        if self._is_reported or exception_hooks.is_interactive():
            return
        if self._prepared is not None and self._prepared["steps_done"] == self._steps_done:
            self._write(self._prepared)  # training did not go on after all
        elif exception_hooks.last_error() is None:
            self._leave_caught()

    def _leave_caught(self) -> None:
        """Leave the figures of an OOM that the program caught and finished no step after.

        Nobody knows here whether the program fails, and the error is gone; the parent tells the figures where it does.
        """
        if self._last_ooms and self._last_ooms[-1]["steps_done"] == self._steps_done:
            from . import crash_report

            crash_report.write_caught(self._last_ooms[-1], settings.DIRECTORY)
