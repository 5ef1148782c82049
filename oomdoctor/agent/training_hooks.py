"""Training hooks: optimizer steps, backward, and `train()` and `eval()`.

With several optimizers the slowest counts, also one that was made and has not stepped yet, unless it lags far behind: a
trial shall have seen all of them, and not wait for one that steps once in a while. Each step of torch's own class is
told once it is done: one that a gradient scaler skips is not, and neither is a micro-step that accumulates.

Torch asks for its engine in one place, as `Variable._execution_engine.run_backward(...)`, and lets go of what it got
once the call is over. So what it gets is an engine whose end is the end of backward, and no frame of ours is ever
beneath backward: an error's traceback is as without us.
"""


# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from . import first_batch, imports, settings
from .channel import CHANNEL
from .guard import guarded
from .phase_meter import PHASES

_MOST_LAG = 5


class StepCounter:
    """The steps of a process.

    Attributes:
        done: Steps that count.
        optimizer: Name of the class of the first optimizer that stepped.
        parameter_bytes: Of what the optimizers hold, each at its first step.
        gradient_bytes: Likewise.
        is_over: Whether the trial has seen enough.
        ooms_told: Times that memory had run out when a step last told what was measured.
        idle: Optimizers that were made and have not stepped, by id.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.done = 0
        self.optimizer: str | None = None
        self.parameter_bytes: int | None = None
        self.gradient_bytes: int | None = None
        self.is_over = False
        self.ooms_told = 0
        self.idle: dict[int, Any] = {}
        self._counts: dict[int, int] = {}
        self._alive: dict[int, Any] = {}
        self._orphaned = 0

    def made(self, optimizer: Any) -> None:
        """Expect an optimizer to step."""
        key = id(optimizer)
        if key not in self._counts:
            self.idle[key] = weakref.ref(optimizer, lambda _: self.idle.pop(key, None))

    def count(self, optimizer: Any) -> bool:
        """Count a step; True where it is the first of this optimizer."""
        key = id(optimizer)
        self.idle.pop(key, None)
        is_first = key not in self._counts
        if is_first:
            # One that comes after another has gone goes on where that one was.
            self._counts[key], self._orphaned = self._orphaned, 0
            self._alive[key] = weakref.ref(optimizer, lambda _: self._forget(key))
        self._counts[key] += 1
        counts = self._counts.values()
        slowest = 0 if self.idle else min(counts)
        self.done = max(self.done, slowest, max(counts) // _MOST_LAG)
        return is_first

    def measure(self, optimizer: Any) -> None:
        """Add up what an optimizer holds."""
        parameters = {id(one): one for group in optimizer.param_groups for one in group["params"]}.values()
        gradients = [one.grad for one in parameters if one.grad is not None]
        self.parameter_bytes = (self.parameter_bytes or 0) + sum(map(_tensor_bytes, parameters))
        self.gradient_bytes = (self.gradient_bytes or 0) + sum(map(_tensor_bytes, gradients))
        self.optimizer = self.optimizer or type(optimizer).__name__

    def _forget(self, key: int) -> None:
        self._alive.pop(key, None)
        self._orphaned = max(self._orphaned, self._counts.pop(key, 0))


STEPS = StepCounter()


def watch_steps(torch: Any) -> None:
    """Listen to the steps of all optimizers."""
    module: Any = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_make_step_hook(torch))
    guarded(_listen_to_makers)(module.Optimizer)


def _listen_to_makers(optimizer_class: Any) -> None:
    """Notice that an optimizer is made: the end of its making is where torch prepares its `step` for the hooks."""
    prepare = optimizer_class._patch_step_function  # noqa: SLF001 - nothing else is called for each
    made = guarded(STEPS.made)

    @functools.wraps(prepare)
    def prepared(self: Any) -> Any:
        made(self)
        return prepare(self)

    optimizer_class._patch_step_function = prepared  # noqa: SLF001


@guarded
def _before_step(_optimizer: Any, arguments: Any, named: Any) -> None:
    closure = arguments[1] if len(arguments) > 1 else named.get("closure")
    PHASES.step_begins(has_closure=callable(closure))


def _make_step_hook(torch: Any) -> Any:
    after = guarded(_after_step)

    def hook(optimizer: Any, _arguments: Any, _named: Any) -> None:
        after(torch, optimizer)

    return hook


def _after_step(torch: Any, optimizer: Any) -> None:
    if STEPS.is_over:
        return
    CHANNEL.speak()
    before = STEPS.done
    if STEPS.count(optimizer):
        guarded(STEPS.measure)(optimizer)
    guarded(PHASES.step_ended)(STEPS.done)
    if STEPS.done > before:
        _tell_survival(torch)
        CHANNEL.send({"event": "step", "steps": STEPS.done})
    if STEPS.done >= settings.STEPS:
        _end_trial(torch)


def _tell_survival(torch: Any) -> None:
    """Where memory has run out and the program goes on, tell what was measured: the probe may end the trial now."""
    from . import trial_device, trial_report  # noqa: PLC0415 - needed once

    if trial_device.DEVICE.ooms > STEPS.ooms_told:
        STEPS.ooms_told = trial_device.DEVICE.ooms
        trial_report.send_report(torch, "step")


def _end_trial(torch: Any) -> None:
    """Stand still from here on: nothing more shall be written or printed."""
    from . import trial_report  # noqa: PLC0415 - needed once

    STEPS.is_over = True
    trial_report.send_report(torch, "steps")
    CHANNEL.stand_still()


def _tensor_bytes(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)  # a tensor that is spread over devices has a part here
    return int(local.numel() * local.element_size())


def watch_backward(torch: Any) -> None:
    """Tell the phases of each backward."""
    variable = torch.autograd.Variable
    begins, ended = guarded(PHASES.backward_begins), guarded(PHASES.backward_ended)

    class Engine(type(variable._execution_engine)):  # type: ignore[misc]  # noqa: SLF001
        __slots__ = ()

        def __del__(self) -> None:
            ended()

    class Asked:
        def __get__(self, _instance: Any, _owner: Any) -> Any:
            begins()
            return Engine()

    variable._execution_engine = Asked()  # noqa: SLF001


_LIGHTNING = ("lightning.pytorch.utilities.model_helpers", "pytorch_lightning.utilities.model_helpers")


def watch_modes(torch: Any) -> None:
    """Tell the phases of each outermost call; a module calls those of its parts."""
    module = torch.nn.Module
    original = module.train
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
                _mode_changed(self, is_training=bool(mode))

    module.train = train
    for name in _LIGHTNING:
        imports.when_imported(name, functools.partial(_watch_lightning, name))


@guarded
def _mode_changed(module: Any, *, is_training: bool) -> None:
    PHASES.mode_changed(module, is_training=is_training)
    if is_training:
        first_batch.training_begins()


def _watch_lightning(name: str) -> None:
    lightning: Any = sys.modules[name]
    mode = lightning._ModuleMode  # noqa: SLF001
    original = mode.restore

    @functools.wraps(original)
    def restore(self: Any, module: Any) -> Any:
        result = original(self, module)
        _mode_changed(module, is_training=module.training)
        return result

    mode.restore = restore
