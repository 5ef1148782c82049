"""Python frames in the memory history: not recorded where there are none, nor where nobody needs them.

Frames are what the history costs most. In backward PyTorch's own thread runs, mostly without a frame of Python to find,
and looking for one takes as long as finding ten. In an optimizer's step, once its state is there, nothing that is taken
outlives the step. So both are recorded without frames, event by event, as soon as the history of the first step shows
that nothing is lost by it: that Python runs in no other thread, which it does in backward where activations are
recomputed or a `torch.autograd.Function` is written in Python, and that a change of what is recorded keeps the events.

Once the program itself says what is to be recorded, all of this ends.
"""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here; the history has no public way

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# On a GPU a step waits for the device, and what the host does meanwhile costs nothing: there torch is left as it is.
_ON_NULL_GPU = "OOMDOCTOR_NULL_NAME" in os.environ
_RECORDERS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class RecorderWatch:
    """Notices that the program itself says what the memory history records.

    Args:
        torch: The module.
        taken_over: Called at the first such call; torch is as it is without us from then on.
    """

    def __init__(self, torch: Any, taken_over: Callable[[], Any]) -> None:
        self._module = torch._C
        self._taken_over = taken_over
        self._originals = {name: getattr(self._module, name) for name in _RECORDERS if hasattr(self._module, name)}

    def begin(self) -> None:
        """Listen to the program's calls."""
        for name in self._originals:
            setattr(self._module, name, self._listener(name))

    def end(self) -> None:
        """Leave torch's functions as they were."""
        for name, original in self._originals.items():
            setattr(self._module, name, original)

    def _listener(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        @functools.wraps(original)
        def recorder(*arguments: Any, **named: Any) -> Any:
            self.end()
            self._taken_over()
            return original(*arguments, **named)

        return recorder


class FrameRecording:
    """The memory history of a process, with Python's frames only where they are needed.

    Args:
        torch: The module.

    Attributes:
        is_recording: Whether the history is ours: it has begun, and the program has not taken it over.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._with_frames: Callable[[], Any] | None = None
        self._without_frames: Callable[[], Any] | None = None
        self._are_steps_spared = False
        self._undo: list[Callable[[], Any]] = []

    @property
    def is_recording(self) -> bool:
        """Whether the history is ours."""
        return self._with_frames is not None

    def begin(self, max_entries: int) -> None:
        """Record the history with frames where memory is taken, and notice when the program changes that."""
        record = functools.partial(
            self._torch.cuda.memory._record_memory_history, "all", stacks="python", max_entries=max_entries
        )
        # The very call that torch makes, without its way there, since it is made twice a step.
        self._with_frames = _call_beneath(self._torch, functools.partial(record, context="alloc"))
        self._without_frames = _call_beneath(self._torch, functools.partial(record, context=None))
        self._with_frames()
        watch = RecorderWatch(self._torch, self.forget)
        self._undo.append(watch.end)
        watch.begin()

    def forget(self) -> None:
        """Leave the recording alone from now on."""
        self._with_frames = self._without_frames = None
        self._are_steps_spared = False
        while self._undo:
            self._undo.pop()()

    def restore(self) -> None:
        """Record frames again, where a step or a backward has ended, however it did."""
        if self._with_frames is not None:
            self._with_frames()

    def before_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        """Record no frames while a step runs, unless it makes the optimizer's state or calls the program back."""
        if not self._are_steps_spared or self._without_frames is None:
            return
        is_called_back = len(arguments) > 1 or bool(named)
        if not is_called_back and optimizer.state:
            self._without_frames()

    def after_step(self) -> None:
        """Record frames again; after the first step, see where they can be spared from now on."""
        if self._with_frames is None:
            return
        self._with_frames()
        if not self._are_steps_spared:
            self._spare()

    def _spare(self) -> None:
        traces = self._torch.cuda.memory._snapshot()["device_traces"]
        stacks = [event.get("frames") for trace in traces for event in trace if event["action"] == "alloc"]
        if not stacks:  # older versions of torch begin a new history with each change
            self.forget()
            return
        self._are_steps_spared = True
        alone = {_outermost(stack) for stack in stacks if stack} == {_own_outermost()}
        if _ON_NULL_GPU and not all(stacks) and alone:
            self._spare_backward()

    def _spare_backward(self) -> None:
        """Record no frames from where torch asks for its engine until backward has ended.

        Torch asks for it in one place, as `Variable._execution_engine.run_backward(...)`, and lets go of what it got
        once the call is over. So what it gets is an engine whose end is the end of backward, and no frame of ours is
        ever beneath backward: an error's traceback is the same, and Ctrl-C is noticed in the program's own frames.
        """
        recording = self
        variable = self._torch.autograd.Variable
        engine = variable._execution_engine

        class Engine(type(engine)):  # type: ignore[misc]
            __slots__ = ()
            __del__ = recording._with_frames  # in C, so that an interrupt does not end in it

        class Asked:
            def __get__(self, _instance: Any, _owner: Any) -> Any:
                if recording._without_frames is not None:
                    recording._without_frames()
                return Engine()

        self._undo.append(functools.partial(setattr, Engine, "__del__", int))  # which does nothing
        self._undo.append(functools.partial(setattr, variable, "_execution_engine", engine))
        variable._execution_engine = Asked()


def _call_beneath(torch: Any, record: Callable[[], Any]) -> Callable[[], Any]:
    """Return the call of torch's C++ part that `record` comes down to."""
    name = _RECORDERS[0]
    original = getattr(torch._C, name)
    calls: list[tuple[Any, ...]] = []
    setattr(torch._C, name, lambda *arguments: calls.append(arguments))
    try:
        record()
    finally:
        setattr(torch._C, name, original)
    (arguments,) = calls
    return functools.partial(original, *arguments)


def _outermost(stack: list[dict[str, Any]]) -> tuple[str, str]:
    return stack[-1]["filename"], stack[-1]["name"]


def _own_outermost() -> tuple[str, str]:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_code.co_name
