"""Training hooks: optimizer steps that count, backward, and `train()` and `eval()`.

With several optimizers the slowest counts, also one that was made and has not stepped yet, unless it lags far behind: a
trial shall have seen all of them, and not wait for one that steps once in a while. Each step of torch's own class is
told once it is done: one that a gradient scaler skips is not, and neither is a micro-step that accumulates.
"""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here; some places are not public

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_LAG = 5
_LIGHTNING = ("lightning.pytorch.utilities.model_helpers", "pytorch_lightning.utilities.model_helpers")


class StepCounter:
    """The optimizer steps of a process.

    Attributes:
        done: Steps that count.
        optimizer: Class name of the first optimizer that stepped.
        parameter_bytes: Bytes of the parameters that the optimizers hold, each at its first step.
        gradient_bytes: Bytes of the gradients, likewise.
        stepped: Optimizers that have stepped.
        idle: Optimizers that were made and have not stepped, by id.
        has_optimizer: Whether one was made or stepped.
    """

    def __init__(self) -> None:
        self.has_optimizer = False  # also where it was made before a fork
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.done = self.stepped = 0
        self.optimizer: str | None = None
        self.parameter_bytes: int | None = None
        self.gradient_bytes: int | None = None
        self.idle: dict[int, Any] = {}
        self._counts: dict[int, int] = {}
        self._alive: dict[int, Any] = {}
        self._orphaned = 0

    def made(self, optimizer: Any) -> None:
        """Expect an optimizer to step."""
        self.has_optimizer = True
        key = id(optimizer)
        if key not in self._counts:
            self.idle[key] = weakref.ref(optimizer, lambda _: self.idle.pop(key, None))

    def count(self, optimizer: Any) -> None:
        """Count a step; at the first of an optimizer, add up what it holds."""
        self.has_optimizer = True
        key = id(optimizer)
        self.idle.pop(key, None)
        is_first = key not in self._counts
        if is_first:
            self.stepped += 1
            # One that comes after another has gone goes on where that one was.
            self._counts[key], self._orphaned = self._orphaned, 0
            self._alive[key] = weakref.ref(optimizer, lambda _: self._forget(key))
        self._counts[key] += 1
        counts = self._counts.values()
        slowest = 0 if self.idle else min(counts)
        self.done = max(self.done, slowest, max(counts) // _MOST_LAG)
        if is_first:
            guarded(self._measure)(optimizer)

    def _measure(self, optimizer: Any) -> None:
        parameters = {id(one): one for group in optimizer.param_groups for one in group["params"]}.values()
        gradients = [one.grad for one in parameters if one.grad is not None]
        self.parameter_bytes = (self.parameter_bytes or 0) + sum(map(_tensor_bytes, parameters))
        self.gradient_bytes = (self.gradient_bytes or 0) + sum(map(_tensor_bytes, gradients))
        self.optimizer = self.optimizer or type(optimizer).__name__

    def _forget(self, key: int) -> None:
        self._alive.pop(key, None)
        self._orphaned = max(self._orphaned, self._counts.pop(key, 0))


def _tensor_bytes(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)  # a tensor that is spread over devices has a part here
    return int(local.numel() * local.element_size())


def watch_steps(begins: Callable[[bool], Any], ended: Callable[[Any], Any], made: Callable[[Any], Any]) -> None:
    """Listen to the steps of all optimizers.

    Args:
        begins: Called before a step, with whether it has a closure.
        ended: Called with the optimizer after a step.
        made: Called with an optimizer that was made.
    """
    module: Any = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
    begins, ended = guarded(begins), guarded(ended)

    def before_step(_optimizer: Any, arguments: Any, named: Any) -> None:
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        begins(callable(closure))

    def after_step(optimizer: Any, _arguments: Any, _named: Any) -> None:
        ended(optimizer)

    module.register_optimizer_step_pre_hook(before_step)
    module.register_optimizer_step_post_hook(after_step)
    # The end of making an optimizer is where torch prepares its `step` for the hooks; nothing else is called for each.
    prepare, made = module.Optimizer._patch_step_function, guarded(made)

    @functools.wraps(prepare)
    def prepared(self: Any) -> Any:
        made(self)
        return prepare(self)

    module.Optimizer._patch_step_function = prepared


_BACKWARD_LISTENERS: list[tuple[Callable[[], Any], Callable[[], Any]]] = []


def watch_backward(torch: Any, begins: Callable[[], Any], ended: Callable[[], Any]) -> None:
    """Listen to each backward: `loss.backward()`, `torch.autograd.grad`, and those inside them.

    Torch asks for its engine in one place, as `Variable._execution_engine.run_backward(...)`, and lets go of what it
    got once the call is over. So what it gets is an engine whose end is the end of backward, and no frame of ours is
    ever beneath backward: an error's traceback is as without us.
    """
    _BACKWARD_LISTENERS.append((guarded(begins), guarded(ended)))
    if len(_BACKWARD_LISTENERS) > 1:
        return
    variable = torch.autograd.Variable

    class Engine(type(variable._execution_engine)):  # type: ignore[misc]
        __slots__ = ()

        def __del__(self) -> None:
            for _, tell in _BACKWARD_LISTENERS:
                tell()

    class Asked:
        def __get__(self, _instance: Any, _owner: Any) -> Any:
            for tell, _ in _BACKWARD_LISTENERS:
                tell()
            return Engine()

    variable._execution_engine = Asked()


def watch_modes(torch: Any, changed: Callable[[Any, bool], Any]) -> None:
    """Listen to each outermost call of `train()` and `eval()`; a module calls those of its parts.

    Args:
        torch: The module.
        changed: Called with the module and whether it trains from now on.
    """
    module = torch.nn.Module
    original = module.train
    changed = guarded(changed)
    depth = 0

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002 - as it is without us
        nonlocal depth
        depth += 1
        try:
            return original(self, mode)
        finally:
            depth -= 1
            if depth == 0:
                changed(self, bool(mode))

    module.train = train
    for name in _LIGHTNING:
        imports.when_imported(name, functools.partial(_watch_lightning, name, changed))


def _watch_lightning(name: str, changed: Callable[[Any, bool], Any]) -> None:
    """Listen to Lightning, which sets modes back without `train()`."""
    mode = sys.modules[name]._ModuleMode
    original = mode.restore

    @functools.wraps(original)
    def restore(self: Any, module: Any) -> Any:
        result = original(self, module)
        changed(module, module.training)
        return result

    mode.restore = restore
