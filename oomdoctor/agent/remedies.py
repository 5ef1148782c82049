"""Remedies in the program of a command: they are applied to its models and optimizers before these are used.

What a remedy changes is stated once, in `oomdoctor.remedies`. So a trial with remedies is the one in which the agent
loads more of oomdoctor than itself, from the folder that it lies in, and needs a Python that can read it. A model is
changed at its first call in training, an optimizer at its first step; what surrounds a forward, as autocast does,
begins with the call of a model and ends where the backward begins, so that the loss is inside.

A program in which a remedy cannot be applied is not measured: the agent says why, and stands still.
"""

# ruff: noqa: ANN401, PLC0415, SLF001 - torch and what programs hand over have no type here; not imported where not needed

from __future__ import annotations

import functools
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import imports, settings, training_hooks
from .messages import ProgramLines, RemediesApplied, RemedyApplied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .channel import Channel

_LEAST_PYTHON = (3, 11)
_OPTIMIZED = 1
"""Flag of code whose variables are not held in a dictionary, so that asking for them makes one."""
_PLACES = ("imports", "top", "definitions", "model", "batch", "decorators", "keywords", "loop")


class RemedyAgent:
    """Applies remedies to what a program makes.

    Args:
        torch: The module.
        channel: To the parent.
    """

    def __init__(self, torch: Any, channel: Channel) -> None:
        asked = json.loads(settings.REMEDIES)
        self._model_remedies, self._optimizer_remedies = asked["model"], asked["optimizer"]
        self._autocast: str | None = asked["autocast"]
        self._torch, self._channel = torch, channel
        self._known: set[int] = set()  # modules of models that were looked at
        self._entries: set[int] = set()  # modules whose call begins a forward
        self._models: list[Any] = []  # changes of each model
        self._optimizers: Any = None
        self._problems: list[str] = []
        self._forward: ExitStack | None = None
        self._autocasting: ExitStack | None = None
        self._modes = 0  # of PyTorch's functions, once a forward has begun
        self._is_in_backward = False
        self._has_gone_backward = False  # since what surrounds a forward has begun
        self._search: Any = None
        self._stepping: set[int] = set()  # optimizers that have taken a step
        self._is_told = False

    def begin(self) -> None:
        """Wait for models and optimizers."""
        optimizer: Any = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(self._noted(self._step_begins))
        optimizer.register_optimizer_step_post_hook(self._noted(self._stepped))
        if self._model_remedies or self._autocast:
            module: Any = sys.modules["torch.nn.modules.module"]
            self._search = module.register_module_forward_pre_hook(self._noted(self._called))
            training_hooks.watch_backward(self._torch, self._noted(self._backward_begins), self._backward_ended)
            imports.when_imported("torch._dynamo.callback", self._watch_compiler)

    def _noted(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a hook that ends the trial where it fails, since it measures nothing that was asked for then."""

        @functools.wraps(function)
        def hook(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - of a change, or of the program's objects
                self._fail(getattr(error, "message", "") or f"{type(error).__name__}: {error}")

        return hook

    def _fail(self, problem: str) -> None:
        self._channel.speak()
        self._channel.send(RemediesApplied((), 0, problem))
        self._channel.stand_still()

    def _watch_compiler(self) -> None:
        def compiling(*_: Any) -> None:
            if not self._is_told:
                self._fail("the program compiles its model, and a change of it would be compiled otherwise")

        sys.modules["torch._dynamo.callback"].callback_handler.register_start_callback(compiling)

    # --- models ------------------------------------------------------------------------------------------------------

    def _called(self, module: Any, _args: Any) -> None:
        """See a call before it begins: the model may be a new one, or a forward begins with it."""
        if self._is_in_backward or not module.training or not self._torch.is_grad_enabled():
            return
        if id(module) not in self._known:
            if not any(parameter.requires_grad and parameter.is_cuda for parameter in module.parameters()):
                return
            self._change(_model_around(self._torch, module))
        if self._forward is None:
            self._watch_entry(module)
            self._enter()  # the hook is heard from its next call on

    def _watch_entry(self, module: Any) -> None:
        """Have a forward begin with a call of this module from now on, unless one has begun by then."""
        if id(module) not in self._entries:
            self._entries.add(id(module))
            module.register_forward_pre_hook(self._noted(self._entered))

    def _change(self, model: Any) -> None:
        self._known.update(map(id, model.modules()))
        self._watch_entry(model)  # which a forward can begin with where the first began with another model
        changes = _changes(self._model_remedies)
        try:
            changes.model(_unwrapped(self._torch, model))
        except _not_applicable() as error:
            self._problems.append(error.message)
        else:
            self._models.append(changes)

    def _entered(self, module: Any, _args: Any) -> None:
        if self._is_in_backward or not module.training or not self._torch.is_grad_enabled():
            return
        if self._has_gone_backward:
            self._leave()
        if self._forward is None:
            self._enter()

    def _enter(self) -> None:
        """Begin what surrounds a forward."""
        self._forward, self._autocasting, self._has_gone_backward = ExitStack(), ExitStack(), False
        for changes in self._models:
            self._forward.enter_context(changes.forward())
        self._modes = self._torch._C._len_torch_function_stack()
        if self._autocast:
            if self._torch.is_autocast_enabled():
                raise _not_applicable()("the program runs its forward under autocast already")
            dtype = {"bf16": self._torch.bfloat16}[self._autocast]
            self._autocasting.enter_context(self._torch.autocast("cuda", dtype=dtype))

    def _leave(self) -> None:
        """End what surrounds a forward, unless a mode of it has called the function that runs, and is away so long."""
        if self._autocasting is not None:
            self._autocasting.close()
            self._autocasting = None
        if self._forward is not None and self._torch._C._len_torch_function_stack() >= self._modes:
            forward, self._forward = self._forward, None
            forward.close()

    def _backward_begins(self) -> None:
        self._is_in_backward = True
        self._leave()

    def _backward_ended(self) -> None:
        self._is_in_backward = False
        self._has_gone_backward = True

    # --- optimizers --------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._leave()
        if not self._optimizer_remedies or getattr(optimizer, "_oomdoctor_changed", False):
            return
        if self._optimizers is None:
            self._optimizers = _changes(self._optimizer_remedies)
        self._optimizers.held_optimizer(optimizer)
        optimizer._oomdoctor_changed = True

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """Send the applied remedies after the first step; end the search for models once an optimizer steps again."""
        if self._search is not None and id(optimizer) in self._stepping:
            self._search.remove()
            self._search = None
        self._stepping.add(id(optimizer))
        if self._is_told:
            return
        self._is_told = True
        if not self._models and (self._model_remedies or self._autocast):
            self._fail((self._problems or ["no model was called in training mode before the first optimizer step"])[0])
        for changes in self._models:
            changes.end()
        host_bytes = max((changes.host_bytes for changes in self._models), default=0)
        told = [*self._models[:1], *([self._optimizers] if self._optimizers else [])]
        applied = [change for changes in told for change in changes.applied()]
        self._channel.send(RemediesApplied(tuple(map(_told, applied)), host_bytes, None))


def _changes(names: list[str]) -> Any:
    return _oomdoctor("oomdoctor.remedies.applied").Changes(names)


def _not_applicable() -> Any:
    return _oomdoctor("oomdoctor.errors").NotApplicableError


def _oomdoctor(module: str) -> Any:
    """Return a module of oomdoctor, which need not be installed where the program is.

    Raises:
        RuntimeError: This Python cannot read it.
    """
    from importlib import import_module

    if sys.version_info < _LEAST_PYTHON:
        least = ".".join(map(str, _LEAST_PYTHON))
        raise RuntimeError(f"the command's Python {sys.version.split()[0]} is older than {least}, which remedies need")
    folder = str(Path(__file__).resolve().parents[2])
    sys.path.append(folder)
    try:
        return import_module(module)
    finally:
        sys.path.remove(folder)


def _model_around(torch: Any, module: Any) -> Any:
    """Return the outermost module that a caller of this one holds and that it is a part of."""
    model, frame = module, sys._getframe(2).f_back
    while frame is not None:
        for other in _modules_in(torch, frame):
            if other is not model and any(part is model for part in other.modules()):
                model = other
        frame = frame.f_back
    return model


def _modules_in(torch: Any, frame: Any) -> list[Any]:
    """Return the modules among the variables of a frame, and keep nothing of them alive."""
    local = frame.f_locals
    found = [value for value in local.values() if isinstance(value, torch.nn.Module)]
    if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
        local.clear()  # else the frame holds the copy, and with it every tensor
    return found


def _unwrapped(torch: Any, model: Any) -> Any:
    """Return the user's model in a wrapper for several ranks."""
    inner = getattr(model, "module", None)
    is_wrapper = type(model).__module__.startswith("torch.") and isinstance(inner, torch.nn.Module)
    return inner if is_wrapper else model


def _told(change: Any) -> RemedyApplied:
    return RemedyApplied(
        change.name, change.acts_on, change.count, change.total, change.note, tuple(_lines(change.edit))
    )


def _lines(edit: Any) -> Iterable[ProgramLines] | Iterator[ProgramLines]:
    for place in _PLACES:
        lines = getattr(edit, place)
        if lines:
            yield ProgramLines(place, tuple(lines))
