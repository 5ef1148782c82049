"""Training agent: what a process of a command tells of its training, from the import of torch to its end.

It owns the parts that watch; the parts interact only through its methods. The last message of a process has everything
that was measured.
"""

# ruff: noqa: ANN401, PLC0415, SLF001 - torch has no type here, nor public ways; not imported where it is not needed

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import (
    exception_hooks,
    kernel_timing,
    lone_rank,
    null_gpu,
    oom_errors,
    pipelines,
    settings,
    training_hooks,
    unknown_reads,
)
from .allocator_blocks import first_steps, pack
from .first_batch import FirstBatchSearch as BatchSearch
from .guard import FAILURES, guarded
from .holders import LeakSearch
from .memory_stats import DevicePeaks, OwnLimits, PeakKeeper, kept_bytes, limit_memory
from .messages import (
    LEAST_GROWTH_BYTES,
    DeviceInfo,
    ErrorChain,
    ErrorLink,
    Evaluation,
    FirstBatch,
    Measurements,
    NoOptimizer,
    OutOfMemory,
    ProcessDescription,
    StepDone,
    TorchImported,
    has_kernels,
)
from .phase_meter import BACKWARD, EVALUATION, LOAD, OPTIMIZER, MeteredPhase, PhaseTable
from .training_hooks import StepCounter
from .training_phases import AllocatorHistory, TrainingPhases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .channel import Channel
    from .messages import Ending
    from .training_phases import PhasePart

_MOST_OOMS = 16
_ENOUGH_STEPS, _RETRY_STEPS = 2, 8
"""Fewest steps that show the peak of training, and those that a trial takes where the allocator gave back its cache."""
_SETTLED_STEPS = 3
_LONGEST_GROWTH_SECONDS = 30.0
_BACKWARDS_WITHOUT_OPTIMIZER = 16
"""Backward passes after which a program that has made no optimizer of torch is taken to have none."""


class TrainingAgent:
    """Watches how one process trains.

    Args:
        torch: The module, just imported.
        channel: To the parent.
    """

    def __init__(self, torch: Any, channel: Channel) -> None:
        self._torch = torch
        self._channel = channel
        self._history = AllocatorHistory(torch)
        self._phases = TrainingPhases(self._history.position, lambda begins: channel.send(Evaluation(begins)))
        self._steps = StepCounter()
        self._batch = BatchSearch(torch, self._first_batch)
        self._peaks: PeakKeeper | None = None
        self._reset()

    def _reset(self) -> None:
        """Begin again, as a process does that was forked: it has its own steps and its own end."""
        self._process = os.getpid()
        self._phases.reset()
        self._steps.reset()
        self._has_cuda = False
        self._own_limits: OwnLimits | None = None
        self._ooms = 0
        self._ooms_told = 0
        self._ooms_seen = 0  # by the end of the last backward
        self._backwards = 0
        self._step_ends: list[int] = []  # bytes in live tensors
        self._leak = LeakSearch(unknown_reads.is_programs_file)
        self._grows_since = 0.0
        self._failed: set[tuple[int, str]] = set()
        self._is_over = False
        self._is_end_told = False
        self._exit_error: tuple[ErrorChain, int] | None = None  # the error at `sys.exit`, and the steps done by then

    def begin(self) -> None:
        """Tell that torch is there, and listen to what training does with it."""
        self._channel.first_message = guarded(self._tell_start)
        if not self._channel.is_quiet:
            self._channel.first_message()
        if settings.DESCRIBE:
            from .forking import admission  # for the first trial alone

            guarded(admission.at_torch_import)()
        guarded(training_hooks.watch_steps)(self._phases.step_begins, self._step_ended, self._steps.made)
        guarded(training_hooks.watch_backward)(self._torch, self._phases.backward_begins, self._backward_ended)
        guarded(training_hooks.watch_modes)(self._torch, self._mode_changed)
        guarded(self._batch.watch)()
        guarded(null_gpu.wait_for_backward_at_exit)()
        guarded(null_gpu.begin)()
        guarded(kernel_timing.watch)()
        guarded(self._watch_end)()
        os.register_at_fork(after_in_child=guarded(self._reset))
        self._torch.cuda._lazy_call(guarded(self._begin_with_cuda))  # at once where CUDA is initialised

    def _tell_start(self) -> None:
        rank, world_size = _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)
        if lone_rank.is_lone():
            world_size = 1  # of those that train together here
        version, torch = ".".join(map(str, sys.version_info[:3])), self._torch
        self._channel.send(TorchImported(rank, world_size, version, str(torch.__version__), torch.version.cuda))

    # --- training ----------------------------------------------------------------------------------------------------

    def _first_batch(self, module: Any, shapes: list[list[int]], is_training: bool) -> None:  # noqa: FBT001 - a callback
        self._phases.forward_begins(module)
        self._channel.send(FirstBatch(tuple(map(tuple, shapes)), is_training))

    def _mode_changed(self, module: Any, is_training: bool) -> None:  # noqa: FBT001 - a callback
        self._phases.mode_changed(module, is_training=is_training)
        if is_training:
            guarded(self._batch.training_begins)()

    def _backward_ended(self) -> None:
        """Count a backward that has ended: as a step where that was asked for, else to see that nothing optimizes."""
        if not self._phases.backward_ended() or self._is_over:
            return
        self._backwards += 1
        has_run_out, self._ooms_seen = self._ooms > self._ooms_seen, self._ooms
        if settings.COUNTS_BACKWARD and has_run_out:  # it has not done what a step does, whoever catches the error
            return
        if settings.COUNTS_BACKWARD:
            self._channel.speak()
            self._steps.done += 1
            self._step_counted(self._steps.done - 1)
        elif self._backwards == _BACKWARDS_WITHOUT_OPTIMIZER:
            self._tell_without_optimizer()

    def _tell_without_optimizer(self) -> None:
        if self._backwards and self._has_cuda and not self._steps.has_optimizer and not settings.COUNTS_BACKWARD:
            self._channel.send(NoOptimizer(self._backwards))

    def _step_ended(self, optimizer: Any) -> None:
        if self._is_over:
            return
        if settings.COUNTS_BACKWARD:
            done = self._steps.done
            self._steps.count(optimizer)  # what it is and holds is told all the same
            self._steps.done = done
            guarded(self._phases.step_ended)(done)
            return
        self._channel.speak()
        before = self._steps.done
        self._steps.count(optimizer)
        self._step_counted(before)

    def _step_counted(self, before: int) -> None:
        """Go on to the next iteration and tell of the step; the last that was asked for ends the trial."""
        guarded(self._phases.step_ended)(self._steps.done)
        if self._steps.done > before:
            # Where memory has run out and the program goes on, the parent may end the trial: tell what was measured.
            if self._ooms > self._ooms_told:
                self._ooms_told = self._ooms
                self._report("step")
            self._channel.send(StepDone(self._steps.done))
            self._step_ends.append(guarded(self._live_bytes)() or 0)
        if self._steps.done >= settings.STEPS and not (guarded(self._may_need_more)() or False):
            self._is_over = True
            self._report("steps")
            self._channel.stand_still()

    def _live_bytes(self) -> int:
        """Return the bytes that live tensors keep."""
        return kept_bytes(self._torch._C._cuda_memoryStats(self._history.device)) if self._has_cuda else 0

    def _may_need_more(self) -> bool:
        """Return whether a later step may run out where the last that was asked for did not.

        Memory is kept from step to step, or so little is left that the allocator gave back its cache: which blocks are
        in each other's way is another matter in each step then, and the fourth may fail where three fitted. A step on a
        stream of its own may warm up for a CUDA graph, which is captured after it and has a pool of its own.
        """
        if not _ENOUGH_STEPS <= self._steps.done < settings.MOST_STEPS or self._peaks is None:
            return False
        if self._grows():
            guarded(self._leak.step_ended)()
            self._grows_since = self._grows_since or time.monotonic()
            return time.monotonic() < self._grows_since + _LONGEST_GROWTH_SECONDS
        peaks = self._peaks.now()[self._history.device]
        is_early = self._steps.done < _RETRY_STEPS
        return is_early and (peaks.retries + peaks.workspace_retries > 0 or self._may_warm_up())

    def _may_warm_up(self) -> bool:
        cuda, device = self._torch.cuda, self._history.device
        return cuda.current_stream(device) != cuda.default_stream(device) and not cuda.is_current_stream_capturing()

    def _grows(self) -> bool:
        """Return whether no step has ended lower than the one before, and the last have not ended alike."""
        ends = self._step_ends[1:]  # the first step makes the optimizer's state
        has_settled = len(ends) >= _SETTLED_STEPS and len(set(ends[-_SETTLED_STEPS:])) == 1
        return bool(ends) and ends == sorted(ends) and ends[-1] >= ends[0] + LEAST_GROWTH_BYTES and not has_settled

    # --- the device --------------------------------------------------------------------------------------------------

    def _begin_with_cuda(self) -> None:
        """Begin with a CUDA that has just been initialised; nothing here initialises it."""
        self._channel.speak()
        self._has_cuda = True
        device = guarded(self._device_index)() or 0
        guarded(self._tell_device)(device)
        limits = settings.MEMORY_BYTES, settings.CARD_BYTES, settings.RESERVE_BYTES
        self._own_limits = guarded(limit_memory)(self._torch, *limits)
        self._peaks = PeakKeeper(self._torch, (device,), self._history.forget_counts)
        guarded(self._peaks.watch)()
        guarded(self._history.begin)(device)
        self._torch._C._cuda_attach_out_of_memory_observer(self._observe_oom)

    def _device_index(self) -> int:
        """Return the device that this process will use; no other is asked, since that makes a context on it."""
        local_rank = _environment_number("LOCAL_RANK", -1)
        if 0 <= local_rank < self._torch.cuda.device_count():
            return local_rank
        return int(self._torch.cuda.current_device())

    def _tell_device(self, index: int) -> None:
        properties = self._torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        free, total = self._torch.cuda.mem_get_info(index)
        is_served = has_kernels(self._torch.cuda.get_arch_list(), capability)
        self._channel.send(DeviceInfo(index, properties.name, ".".join(map(str, capability)), is_served, total, free))

    def _observe_oom(self, _device: int, tried: int, total: int, free: int) -> None:
        """Tell that memory runs out; the allocator calls this before it raises."""
        with suppress(BaseException):  # from here an error would go through C++ code that expects none
            if null_gpu.is_in_workspace():
                return
            self._ooms += 1
            if self._ooms <= _MOST_OOMS:
                phase = self._phases.phase_now(has_gradients=self._torch.is_grad_enabled())
                iteration = self._phases.iteration
                self._failed.add((iteration, phase))
                self._channel.send(OutOfMemory(tried, total, free, phase, iteration, self._steps.done, self._ooms))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _watch_end(self) -> None:
        exception_hooks.wrap_exit(guarded(self._note_exit))
        # Called before `atexit`, and before threads are waited for. Private API of `threading`; absent in 3.8.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(guarded(self._at_shutdown))
        atexit.register(guarded(lambda: self._tell_end(self._last_error())))

    def _note_exit(self, status: Any) -> None:
        """Keep the error that is handled when the program asks to leave; it may still catch `SystemExit`."""
        error = sys.exc_info()[1]
        if status not in (None, 0) and error is not None and not isinstance(error, SystemExit):
            self._exit_error = error_chain(error), self._steps.done

    def _at_shutdown(self) -> None:
        error = self._last_error()
        if error is not None:
            self._tell_end(error)
            if self._ooms and os.getpid() == self._process:
                for stream in (sys.stdout, sys.stderr):
                    guarded(lambda held: held.flush())(stream)  # it may be closed, or the program's own
                self._channel.stand_still()

    def _last_error(self) -> ErrorChain | None:
        error = exception_hooks.last_error()
        if error is not None:
            return error_chain(error)
        if self._exit_error is not None and self._exit_error[1] == self._steps.done:  # training did not go on after all
            return self._exit_error[0]
        return None

    def end(self, error: BaseException | None) -> None:
        """Send the last message of a process whose function returned, or raised `error`."""
        self._tell_end(None if error is None else error_chain(error))

    def _tell_end(self, error: ErrorChain | None) -> None:
        if self._is_end_told or self._is_over:
            return
        self._is_end_told = True
        self._report("exit" if error is None else "error", error)
        self._tell_without_optimizer()  # after what was measured: the parent then waits for the exit code
        self._channel.flush()

    def _report(self, ending: Ending, error: ErrorChain | None = None) -> None:
        """Send everything that was measured.

        Args:
            ending: `steps`, `error` or `exit`; `step` where memory ran out and a step was done all the same.
            error: The error that nobody handles.
        """
        steps, peaks = self._steps, DevicePeaks()
        if self._peaks is not None and self._has_cuda:
            peaks = (guarded(self._peaks.now)() or {}).get(self._history.device, peaks)
        parts = guarded(self._history.read)(self._phases.starts) or []
        trace = first_steps(self._history.trace, settings.STEPS)  # those that trials of other sizes take as well
        used = [part for part in parts if part.allocations or part.start.phase in (LOAD, OPTIMIZER)]
        ended_by_error = {(part.start.iteration, part.start.phase) for part in used[-1:] if error is not None}
        self._channel.send(
            Measurements(
                ending=ending,
                steps=steps.done,
                idle_optimizers=len(steps.idle),
                passes=self._backwards // steps.done if steps.stepped == 1 and steps.done else None,
                cuda=self._has_cuda,
                optimizer=steps.optimizer,
                parameter_bytes=steps.parameter_bytes,
                gradient_bytes=steps.gradient_bytes,
                peak_allocated_bytes=peaks.allocated_bytes,
                peak_reserved_bytes=peaks.reserved_bytes,
                fixed_bytes=guarded(_fixed_bytes)(used, steps.done),
                alloc_retries=peaks.retries,
                workspace_retries=peaks.workspace_retries,
                workspace_bytes=null_gpu.workspace_bytes(),
                timing_bytes=guarded(kernel_timing.limiting_bytes)(peaks.allocated_bytes, ran_out=bool(peaks.ooms))
                or 0,
                ooms=peaks.ooms,
                training_peak_bytes=_highest(part for part in used if part.start.phase not in (LOAD, EVALUATION)),
                evaluation_peak_bytes=_highest(part for part in used if part.start.phase == EVALUATION),
                phases=_phases(used, self._failed | ended_by_error),
                allocations="" if peaks.ooms or error is not None else pack(trace),
                zeros_read=null_gpu.zeros_read() - unknown_reads.harmless_reads(),
                unknown_reads=unknown_reads.reads(),
                unknown_calls=tuple(null_gpu.unknown_calls()),
                assumptions=null_gpu.assumptions(),
                communicators=null_gpu.communicators(),
                pipeline_micro_batches=pipelines.micro_batches(),
                error=error,
                step_ends=tuple(self._step_ends),
                memory_fraction=self._own_limits.fraction(self._history.device) if self._own_limits else 1.0,
                holder=self._leak.holder,
                process=guarded(_process_description)(),
                failures=tuple(FAILURES),
            )
        )


def _process_description() -> ProcessDescription | None:
    if not settings.DESCRIBE:
        return None
    from .forking import admission  # for the first trial alone

    return ProcessDescription(**admission.describe_process())


def _environment_number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _highest(parts: Iterable[PhasePart]) -> int | None:
    return max((part.peak_bytes for part in parts), default=None)


def _phases(parts: Iterable[PhasePart], failed: set[tuple[int, str]]) -> tuple[MeteredPhase, ...]:
    table: PhaseTable[str, MeteredPhase] = PhaseTable(MeteredPhase)
    for part in parts:
        table.add(part.start.iteration, part.start.phase, part.peak_bytes, part.end_bytes)
    for iteration, phase in failed:
        table.fail(iteration, phase)
    return table.records()


def _fixed_bytes(parts: Sequence[PhasePart], iteration: int) -> int | None:
    """Return the bytes that stay from one micro-step to the next, gradients included where they accumulate.

    The first iteration makes the optimizer's state, so only a later one has all that stays.
    """
    own = [part for part in parts if part.start.iteration == iteration and part.start.phase != EVALUATION]
    backwards = [index for index, part in enumerate(own) if part.start.phase == BACKWARD]
    if iteration < 2 or not backwards:  # noqa: PLR2004 - the second
        return None
    forward = own[backwards[0] + 1 :] if len(backwards) > 1 else own[: backwards[0]]
    return min((part.lowest_bytes for part in forward), default=None)


def error_chain(error: BaseException) -> ErrorChain:
    """Return an error as text: to hold the error itself would hold its frames and all the tensors in them."""
    links = [
        ErrorLink(types=tuple(map(oom_errors.qualified_name, type(link).__mro__)), text=oom_errors.error_text(link))
        for link in oom_errors.walk_chain(error)
    ]
    return ErrorChain(links=tuple(links), traceback=guarded(exception_hooks.full_traceback)(error) or "")
