"""First batch: the shapes of the tensors that the first module is called with.

A hook for the calls of all modules finds them, and is gone right after. It is gone before anything is compiled, too,
since code is compiled for the hooks that there are; then what is about to be compiled shows the batch. Where the first
batch was one of an evaluation, the first of training is told as well.
"""


# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import imports
from .channel import CHANNEL
from .guard import guarded
from .phase_meter import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_MOST_SHAPES = 16
_MOST_FRAMES = 6
_MOST_COMPILER_FRAMES = 30
_KEEPS_COPY = sys.version_info < (3, 13)


class BatchSearch:
    """The search for a batch.

    Attributes:
        torch: The module, once it is imported.
        stop: Takes the hooks away; None where there are none.
        told: Whether the batch that was told was one of training; None before the first.
        is_compiled: Whether code has been compiled, so that hooks would have it compiled again.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.stop: Callable[[], None] | None = None
        self.told: bool | None = None
        self.is_compiled = False


BATCH_SEARCH = BatchSearch()


def watch(torch: Any) -> None:
    """Wait for the first call that is given tensors."""
    BATCH_SEARCH.torch = torch
    _wait()
    imports.when_imported("torch._dynamo.callback", _watch_compiler)


@guarded
def training_begins() -> None:
    """Wait for a batch of training, where none has been seen but one of an evaluation."""
    if BATCH_SEARCH.told is False and BATCH_SEARCH.stop is None and not BATCH_SEARCH.is_compiled:
        _wait()


def _wait() -> None:
    module: Any = sys.modules["torch.nn.modules.module"]
    see = guarded(_see)

    def before_call(called: Any, arguments: Any) -> None:
        if see(called, arguments) is not False:
            _stop()

    handle = module.register_module_forward_pre_hook(before_call)
    undo = _precede_check(module)

    def stop() -> None:
        handle.remove()
        undo()

    BATCH_SEARCH.stop = stop


def _stop() -> None:
    stop, BATCH_SEARCH.stop = BATCH_SEARCH.stop, None
    if stop is not None:
        stop()


def _precede_check(module: Any) -> Callable[[], None]:
    """A compiled module warns where there are hooks; let it find none, and look at its call instead."""
    original = getattr(module, "_has_any_global_hook", None)
    if original is None:  # older versions of torch
        return lambda: None

    def has_any_global_hook() -> Any:
        guarded(_see_compiled_call)(sys._getframe(1))  # noqa: SLF001
        _stop()
        return original()

    module._has_any_global_hook = has_any_global_hook  # noqa: SLF001

    def undo() -> None:
        module._has_any_global_hook = original  # noqa: SLF001

    return undo


def _see_compiled_call(frame: Any) -> None:
    local = _locals(frame, ("self", "args", "kwargs"))
    _tell(local["self"], [*local["args"], *local["kwargs"].values()])


def _see(called: Any, arguments: Any) -> bool:
    """Look at a call; False where it is not the one."""
    found = _tell(called, [*arguments, *_named_arguments().values()])
    return found or type(called).__name__ == "OptimizedModule"


def _tell(called: Any, held: Iterable[Any]) -> bool:
    shapes = [list(tensor.shape) for tensor in _tensors(held)]
    is_training = bool(called.training)
    if not shapes or (BATCH_SEARCH.told is False and not is_training):
        return False
    BATCH_SEARCH.told = is_training
    PHASES.forward_begins(called)
    CHANNEL.send({"event": "batch", "shapes": shapes[:_MOST_SHAPES], "training": is_training})
    return True


def _tensors(held: Any, depth: int = -1) -> Iterator[Any]:
    if isinstance(held, BATCH_SEARCH.torch.Tensor):
        if held.device.type != "meta":
            yield held
    elif depth <= 1 and isinstance(held, (list, tuple, Mapping)):
        for value in list(held.values()) if isinstance(held, Mapping) else held:
            yield from _tensors(value, depth + 1)


def _named_arguments() -> dict[str, Any]:
    """The named arguments of the call that the hook is for: torch gives them to no global hook, but holds them."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in ("inner", "_call_impl"):
            return _locals(frame, ("kwargs",)).get("kwargs") or {}
        frame = frame.f_back
    return {}


def _locals(frame: Any, names: Iterable[str]) -> dict[str, Any]:
    local = frame.f_locals
    found = {name: local[name] for name in names if name in local}
    if _KEEPS_COPY:
        local.clear()  # the frame would keep it, and with it what it names
    return found


def _watch_compiler() -> None:
    module: Any = sys.modules["torch._dynamo.callback"]
    module.callback_handler.register_start_callback(guarded(_compiling))


def _compiling(*_: Any) -> None:
    """Something is about to be compiled, for the hooks that it finds."""
    BATCH_SEARCH.is_compiled = True
    if BATCH_SEARCH.stop is not None:
        _stop()
        _see_compiled_code()


def _see_compiled_code() -> None:
    """Look at the variables of the code that is about to be compiled, where a module is among them."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    for _ in range(_MOST_COMPILER_FRAMES):
        if frame is None:
            return
        if "frame" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            compiled = _locals(frame, ("frame",))["frame"]
            values = list(compiled.f_locals.values())
            module = next((value for value in values if isinstance(value, BATCH_SEARCH.torch.nn.Module)), None)
            if module is not None:
                _tell(module, values)
            return
        frame = frame.f_back
