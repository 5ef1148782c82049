"""Agent of a trial: it tells the parent what happens in a process of the command, as it happens.

Nobody answers; when the parent knows enough it kills the command. A process that has done all steps, or ends because
memory ran out, stands still until then: the trial is over, and what the program has registered with `atexit` shall not
write into it.
"""

# ruff: noqa: ANN401, PLC0415, SLF001 - torch has no type here, nor public ways; modules are imported when needed

from __future__ import annotations

import atexit
import os
import sys

from . import imports, settings
from .channel import Channel
from .file_writes import FileWrites
from .guard import guarded

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from .memory_stats import DevicePeaks, PeakKeeper
    from .messages import Ending, ErrorChain, ProcessDescription

_OTHER_FRAMEWORKS = ("tensorflow", "jax", "keras", "paddle", "mxnet")
_MOST_OOMS = 16


class TrialAgent:
    """Watches one process from its start; what only matters with torch is made once torch is imported."""

    def __init__(self) -> None:
        self._channel = Channel(settings.SOCKET)
        self._writes = FileWrites(self._tell_write)
        self._training: TrainingAgent | None = None

    def begin(self) -> None:
        """Watch from now on."""
        os.register_at_fork(after_in_child=guarded(self._channel.after_fork))
        guarded(self._writes.watch)()
        self._watch_end()
        imports.when_imported("multiprocessing.process", self._watch_children)
        imports.when_imported("torch", self._watch_torch)
        imports.when_imported("safetensors", self._writes.watch_safetensors)
        if os.environ.get("OOMDOCTOR_TRIAL_USES"):
            from .dependency_recorder import record_command_process

            guarded(record_command_process)()

    def _tell_write(self, path: str) -> None:
        self._channel.send_event("wrote", {"path": path}, even_if_quiet=True)

    def _watch_end(self) -> None:
        begun = os.getpid()

        def end() -> None:
            if "torch" not in sys.modules and os.getpid() == begun:
                self._channel.send_event(
                    "no_torch", {"frameworks": [name for name in _OTHER_FRAMEWORKS if name in sys.modules]}
                )

        atexit.register(guarded(end))

    def _watch_children(self) -> None:
        from .exception_hooks import watch_children

        watch_children(sys.modules["multiprocessing.process"], guarded(self._child_ended))

    def _child_ended(self, error: BaseException | None) -> None:
        """Report the end of a multiprocessing child's function: its error, or None."""
        if self._training is not None and not self._channel.is_quiet:
            self._training.end(error)

    def _watch_torch(self) -> None:
        torch = sys.modules["torch"]
        self._training = TrainingAgent(torch, self._channel)
        self._training.begin()
        self._writes.watch_torch(torch)


class TrainingAgent:
    """Owner of the parts that watch how a process trains; the parts interact only through its methods.

    Args:
        torch: The module, just imported.
        channel: To the parent.
    """

    def __init__(self, torch: Any, channel: Channel) -> None:
        from . import trial_report  # noqa: F401 - what needs `messages` is imported before the end
        from .first_batch import FirstBatch
        from .training_hooks import StepCounter
        from .training_phases import AllocatorHistory, TrainingPhases

        self._torch = torch
        self._channel = channel
        self._history = AllocatorHistory(torch)
        self._phases = TrainingPhases(self._history.position)
        self._steps = StepCounter()
        self._batch = FirstBatch(torch, self._first_batch)
        self._peaks: PeakKeeper | None = None
        self._reset()

    def _reset(self) -> None:
        """Begin again, as a process does that was forked: it has its own steps and its own end."""
        self._process = os.getpid()
        self._phases.reset()
        self._steps.reset()
        self._has_cuda = False
        self._ooms = 0
        self._ooms_told = 0
        self._failed: set[tuple[int, str]] = set()
        self._is_over = False
        self._is_end_told = False
        self._exit_error: tuple[ErrorChain, int] | None = None  # the error at `sys.exit`, and the steps done by then

    def begin(self) -> None:
        """Tell that torch is there, and listen to what training does with it."""
        from . import null_gpu

        self._channel.first_message = guarded(self._tell_start)
        if not self._channel.is_quiet:
            self._channel.first_message()
        guarded(self._note_environment)()
        guarded(self._watch_training)()
        guarded(self._batch.watch)()
        guarded(null_gpu.wait_for_backward_at_exit)()
        guarded(null_gpu.patch_ranks)()
        guarded(self._watch_end)()
        os.register_at_fork(after_in_child=guarded(self._reset))
        self._torch.cuda._lazy_call(guarded(self._begin_with_cuda))  # at once where CUDA is initialised

    def _tell_start(self) -> None:
        from .messages import TorchImported

        version = ".".join(map(str, sys.version_info[:3]))
        rank, world_size = _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)
        torch = self._torch
        self._channel.send(TorchImported(rank, world_size, version, str(torch.__version__), torch.version.cuda))

    # --- training ----------------------------------------------------------------------------------------------------

    def _watch_training(self) -> None:
        from . import training_hooks

        guarded(training_hooks.watch_steps)(self._step_begins, self._step_ended, self._steps.made)
        guarded(training_hooks.watch_backward)(self._torch, self._phases.backward_begins, self._phases.backward_ended)
        guarded(training_hooks.watch_modes)(self._torch, self._mode_changed)

    def _first_batch(self, module: Any, shapes: list[list[int]], is_training: bool) -> None:  # noqa: FBT001 - a callback
        from .messages import FirstBatch

        self._phases.forward_begins(module)
        self._channel.send(FirstBatch(tuple(map(tuple, shapes)), is_training))

    def _mode_changed(self, module: Any, is_training: bool) -> None:  # noqa: FBT001 - a callback
        self._phases.mode_changed(module, is_training=is_training)
        if is_training:
            guarded(self._batch.training_begins)()

    def _step_begins(self, has_closure: bool) -> None:  # noqa: FBT001 - a callback
        self._phases.step_begins(has_closure=has_closure)

    def _step_ended(self, optimizer: Any) -> None:
        if self._is_over:
            return
        self._channel.speak()
        before = self._steps.done
        self._steps.count(optimizer)
        guarded(self._phases.step_ended)(self._steps.done)
        if self._steps.done > before:
            self._tell_step()
        if self._steps.done >= settings.STEPS:
            self._is_over = True
            self._report("steps")
            self._channel.stand_still()

    def _tell_step(self) -> None:
        """Tell of a step; where memory has run out and the program goes on, what was measured before it.

        The parent may end the trial then.
        """
        from .messages import StepDone

        if self._ooms > self._ooms_told:
            self._ooms_told = self._ooms
            self._report("step")
        self._channel.send(StepDone(self._steps.done))

    # --- the device --------------------------------------------------------------------------------------------------

    def _begin_with_cuda(self) -> None:
        """Begin with a CUDA that has just been initialised; nothing here initialises it."""
        from .memory_stats import PeakKeeper, limit_memory

        self._channel.speak()
        self._has_cuda = True
        device = guarded(self._device_index)() or 0
        guarded(self._tell_device)(device)
        guarded(limit_memory)(self._torch, settings.MEMORY_BYTES)
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
        from .messages import DeviceInfo, has_kernels

        properties = self._torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        free, total = self._torch.cuda.mem_get_info(index)
        is_served = has_kernels(self._torch.cuda.get_arch_list(), capability)
        self._channel.send(DeviceInfo(index, properties.name, ".".join(map(str, capability)), is_served, total, free))

    def _observe_oom(self, _device: int, tried: int, total: int, free: int) -> None:
        """Tell that memory runs out; the allocator calls this before it raises."""
        try:
            self._ooms += 1
            if self._ooms <= _MOST_OOMS:
                self._tell_oom(tried, total, free)
        except BaseException:  # noqa: BLE001, S110 - from here an error would go through C++ code that expects none
            pass

    def _tell_oom(self, tried: int, total: int, free: int) -> None:
        from .messages import OutOfMemory

        phase, iteration = self._phases.phase_now(has_gradients=self._torch.is_grad_enabled()), self._phases.iteration
        self._failed.add((iteration, phase))
        self._channel.send(OutOfMemory(tried, total, free, phase, iteration, self._steps.done, self._ooms))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _watch_end(self) -> None:
        import threading

        from . import exception_hooks

        exception_hooks.wrap_exit(guarded(self._note_exit))
        # Called before `atexit`, and before threads are waited for. Private API of `threading`; absent in 3.8.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(guarded(self._at_shutdown))
        atexit.register(guarded(self._at_exit))

    def _note_exit(self, status: Any) -> None:
        """Keep the error that is handled when the program asks to leave; it may still catch `SystemExit`."""
        from .trial_report import error_chain

        error = sys.exc_info()[1]
        if status not in (None, 0) and error is not None and not isinstance(error, SystemExit):
            self._exit_error = error_chain(error), self._steps.done

    def _at_shutdown(self) -> None:
        error = self._last_error()
        if error is not None:
            self._tell_end(error)
            if self._ooms and os.getpid() == self._process:
                _flush_streams()
                self._channel.stand_still()

    def _at_exit(self) -> None:
        self._tell_end(self._last_error())

    def _last_error(self) -> ErrorChain | None:
        from . import exception_hooks
        from .trial_report import error_chain

        error = exception_hooks.last_error()
        if error is not None:
            return error_chain(error)
        if self._exit_error is not None and self._exit_error[1] == self._steps.done:  # training did not go on after all
            return self._exit_error[0]
        return None

    def end(self, error: BaseException | None) -> None:
        """Send the last message of a process whose function returned, or raised `error`."""
        from .trial_report import error_chain

        self._tell_end(None if error is None else error_chain(error))

    def _tell_end(self, error: ErrorChain | None) -> None:
        if self._is_end_told or self._is_over:
            return
        self._is_end_told = True
        self._report("exit" if error is None else "error", error)
        self._channel.flush()

    def _report(self, ending: Ending, error: ErrorChain | None = None) -> None:
        """Send everything that was measured."""
        from .trial_report import TrialFacts, measurements

        parts = guarded(self._history.read)(self._phases.starts) or []
        facts = TrialFacts(self._steps, guarded(self._own_peaks)(), parts, self._failed, _describe_process)
        self._channel.send(measurements(facts, ending, has_cuda=self._has_cuda, error=error))

    def _own_peaks(self) -> DevicePeaks | None:
        if self._peaks is None or not self._has_cuda:
            return None
        return self._peaks.now()[self._history.device]

    def _note_environment(self) -> None:
        if settings.DESCRIBE:
            from . import forking  # for the first trial alone

            forking.note_environment()


def _describe_process() -> ProcessDescription | None:
    if not settings.DESCRIBE:
        return None
    from . import forking
    from .messages import ProcessDescription

    return ProcessDescription(**forking.describe())


def _environment_number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _flush_streams() -> None:
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or the program's own
            stream.flush()
