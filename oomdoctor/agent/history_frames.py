"""Python frames in the memory history: recorded only where there are any and somebody needs them.

Frames are what the history costs most. In backward PyTorch's own thread runs, mostly without a frame of Python to find,
and looking for one takes as long as finding ten. In an optimizer's step, once its state is there, nothing that is taken
outlives the step. So both are recorded without frames, event by event, as soon as the history of the first step shows
that nothing is lost by it: that Python runs in no other thread, which it does in backward where activations are
recomputed or a `torch.autograd.Function` is written in Python, and that a change of what is recorded keeps the events.

Once the program itself says what is to be recorded, all of this ends.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable


# On a GPU a step waits for the device, and what the host does meanwhile costs nothing: there torch is left as it is.
_ON_NULL_GPU = "OOMDOCTOR_NULL_NAME" in os.environ
_RECORDERS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class FrameRecording:
    """How frames are recorded.

    Attributes:
        with_frames: Record them from now on; None before the history begins and after the program has taken it over.
        without_frames: Record events without them; None likewise.
        steps_spared: Whether steps of optimizers that have their state are recorded without.
        undo: What makes torch as it is without us.
    """

    def __init__(self) -> None:
        self.with_frames: Callable[[], Any] | None = None
        self.without_frames: Callable[[], Any] | None = None
        self.steps_spared = False
        self.undo: list[Callable[[], Any]] = []

    def forget(self) -> None:
        """Leave the recording alone from now on."""
        self.with_frames = self.without_frames = None
        self.steps_spared = False
        while self.undo:
            self.undo.pop()()


FRAME_RECORDING = FrameRecording()


def begin(torch: Any, max_entries: int) -> None:
    """Record the history with Python's frames where memory is taken, and notice when the program changes that."""
    record = functools.partial(
        torch.cuda.memory._record_memory_history, "all", stacks="python", max_entries=max_entries  # noqa: SLF001
    )  # fmt: skip
    # The very call that torch makes, without its way there, since it is made twice a step.
    FRAME_RECORDING.with_frames = _call_beneath(torch, functools.partial(record, context="alloc"))
    FRAME_RECORDING.without_frames = _call_beneath(torch, functools.partial(record, context=None))
    FRAME_RECORDING.with_frames()
    notice_others(torch)


def restore() -> None:
    """Record frames again, where a step or a backward has ended, however it did."""
    if FRAME_RECORDING.with_frames is not None:
        FRAME_RECORDING.with_frames()


@guarded
def before_step(optimizer: Any, arguments: Any, named: Any) -> None:
    """Record no frames while a step runs, unless it makes the optimizer's state or calls the program back."""
    if not FRAME_RECORDING.steps_spared or FRAME_RECORDING.without_frames is None:
        return
    called_back = len(arguments) > 1 or bool(named)
    if not called_back and optimizer.state:
        FRAME_RECORDING.without_frames()


@guarded
def after_step(torch: Any) -> None:
    """Record frames again; after the first step, see where they can be spared from now on."""
    if FRAME_RECORDING.with_frames is None:
        return
    FRAME_RECORDING.with_frames()
    if FRAME_RECORDING.steps_spared:
        return
    traces = torch.cuda.memory._snapshot()["device_traces"]  # noqa: SLF001
    stacks = [event.get("frames") for trace in traces for event in trace if event["action"] == "alloc"]
    if not stacks:  # older versions of torch begin a new history with each change
        FRAME_RECORDING.forget()
        return
    FRAME_RECORDING.steps_spared = True
    alone = {_outermost(stack) for stack in stacks if stack} == {_own_outermost()}
    if _ON_NULL_GPU and not all(stacks) and alone:
        _spare_backward(torch)


def _call_beneath(torch: Any, record: Callable[[], Any]) -> Callable[[], Any]:
    """Give the call of torch's C++ part that `record` comes down to."""
    name = _RECORDERS[0]
    original = getattr(torch._C, name)  # noqa: SLF001
    calls: list[tuple[Any, ...]] = []
    setattr(torch._C, name, lambda *arguments: calls.append(arguments))  # noqa: SLF001
    try:
        record()
    finally:
        setattr(torch._C, name, original)  # noqa: SLF001
    (arguments,) = calls
    return functools.partial(original, *arguments)


def notice_others(torch: Any) -> None:
    """Listen to the calls that the program makes; the first one makes everything as it is without us."""
    module = torch._C  # noqa: SLF001
    originals = {name: getattr(module, name) for name in _RECORDERS if hasattr(module, name)}

    def listen(name: str) -> Callable[..., Any]:
        @functools.wraps(originals[name])
        def recorder(*arguments: Any, **named: Any) -> Any:
            FRAME_RECORDING.forget()
            return originals[name](*arguments, **named)

        return recorder

    for name, original in originals.items():
        FRAME_RECORDING.undo.append(functools.partial(setattr, module, name, original))
        setattr(module, name, listen(name))


def _outermost(stack: list[dict[str, Any]]) -> tuple[str, str]:
    return stack[-1]["filename"], stack[-1]["name"]


def _own_outermost() -> tuple[str, str]:
    frame = sys._getframe()  # noqa: SLF001
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_code.co_name


def _spare_backward(torch: Any) -> None:
    """Record no frames from where torch asks for its engine until backward has ended.

    Torch asks for it in one place, as `Variable._execution_engine.run_backward(...)`, and lets go of what it got once
    the call is over. So what it gets is an engine whose end is the end of backward, and no frame of ours is ever
    beneath backward: an error's traceback is the same, and Ctrl-C is noticed in the program's own frames.
    """
    variable = torch.autograd.Variable
    engine = variable._execution_engine  # noqa: SLF001

    class Engine(type(engine)):  # type: ignore[misc]
        __slots__ = ()
        __del__ = FRAME_RECORDING.with_frames  # in C, so that an interrupt does not end in it

    class Asked:
        def __get__(self, _instance: Any, _owner: Any) -> Any:
            if FRAME_RECORDING.without_frames is not None:
                FRAME_RECORDING.without_frames()
            return Engine()

    FRAME_RECORDING.undo.append(functools.partial(setattr, Engine, "__del__", int))  # which does nothing
    FRAME_RECORDING.undo.append(functools.partial(setattr, variable, "_execution_engine", engine))
    variable._execution_engine = Asked()  # noqa: SLF001
