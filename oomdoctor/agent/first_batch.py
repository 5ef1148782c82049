"""First batch: the shapes of the tensors that the first module of a program is called with."""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here, nor public ways

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MOST_SHAPES = 16
_MOST_FRAMES = 6
_MOST_COMPILER_FRAMES = 30
_KEEPS_COPY = sys.version_info < (3, 13)


class FirstBatchSearch:
    """The search for the first batch: the tensors that the first module is called with.

    A hook for the calls of all modules finds them, and is gone right after. It is gone before anything is compiled,
    too, since code is compiled for the hooks that there are; then the code that is about to be compiled shows the
    batch. Where the first batch was one of an evaluation, the first of training is told as well.

    Args:
        torch: The module.
        found: Called with the module, the shapes and whether it trains.
    """

    def __init__(self, torch: Any, found: Callable[[Any, list[list[int]], bool], Any]) -> None:
        self._torch = torch
        self._found = found
        self._undo: list[Callable[[], Any]] = []  # while it waits
        self._was_training: bool | None = None  # whether the batch that was told was one of training
        self._is_compiled = False

    def watch(self) -> None:
        """Wait for the first call that is given tensors."""
        self._wait()
        imports.when_imported("torch._dynamo.callback", self._watch_compiler)

    def training_begins(self) -> None:
        """Wait for a batch of training, where none has been seen but one of an evaluation."""
        if self._was_training is False and not self._undo and not self._is_compiled:
            self._wait()

    def _wait(self) -> None:
        module: Any = sys.modules["torch.nn.modules.module"]
        tell = guarded(lambda called, arguments: self._tell(called, [*arguments, *_named_arguments().values()]))

        def before_call(called: Any, arguments: Any) -> None:
            # A failure ends the search too, and so does a compiled module, whose own code is looked at.
            if tell(called, arguments) is not False or type(called).__name__ == "OptimizedModule":
                self._stop()

        handle = module.register_module_forward_pre_hook(before_call)
        self._undo = [handle.remove, self._precede_check(module)]

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop(0)()

    def _precede_check(self, module: Any) -> Callable[[], None]:
        """Let a compiled module find no hooks, of which it would warn, and look at its call instead."""
        original = getattr(module, "_has_any_global_hook", None)
        if original is None:  # older versions of torch
            return lambda: None

        def tell_call(frame: Any) -> None:
            local = _locals(frame, ("self", "args", "kwargs"))
            self._tell(local["self"], [*local["args"], *local["kwargs"].values()])

        def has_any_global_hook() -> Any:
            guarded(tell_call)(sys._getframe(1))
            self._stop()
            return original()

        module._has_any_global_hook = has_any_global_hook
        return functools.partial(setattr, module, "_has_any_global_hook", original)

    def _tell(self, called: Any, held: Iterable[Any]) -> bool:
        shapes = [list(tensor.shape) for tensor in self._tensors(held)]
        is_training = bool(called.training)
        if not shapes or (self._was_training is False and not is_training):
            return False
        self._was_training = is_training
        self._found(called, shapes[:_MOST_SHAPES], is_training)
        return True

    def _tensors(self, held: Any, depth: int = -1) -> Iterator[Any]:
        if isinstance(held, self._torch.Tensor):
            if held.device.type != "meta":
                yield held
        elif depth <= 1 and isinstance(held, (list, tuple, Mapping)):
            for value in list(held.values()) if isinstance(held, Mapping) else held:
                yield from self._tensors(value, depth + 1)

    def _watch_compiler(self) -> None:
        module: Any = sys.modules["torch._dynamo.callback"]
        module.callback_handler.register_start_callback(guarded(self._compiling))

    def _compiling(self, *_: Any) -> None:
        """Leave before something is compiled, for the hooks that it finds."""
        self._is_compiled = True
        if self._undo:
            self._stop()
            self._see_compiled_code()

    def _see_compiled_code(self) -> None:
        """Look at the variables of the code that is about to be compiled, where a module is among them."""
        frame: Any = sys._getframe(2)
        for _ in range(_MOST_COMPILER_FRAMES):
            if frame is None:
                return
            if "frame" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
                compiled = _locals(frame, ("frame",))["frame"]
                values = list(compiled.f_locals.values())
                module = next((value for value in values if isinstance(value, self._torch.nn.Module)), None)
                if module is not None:
                    self._tell(module, values)
                return
            frame = frame.f_back


def _named_arguments() -> dict[str, Any]:
    """Return the named arguments of the hook's call: torch gives them to no global hook, but holds them."""
    frame: Any = sys._getframe(2)
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
