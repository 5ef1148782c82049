"""Optimizer steps that count, told through torch's global hooks, and the end of the trial after enough of them.

With several optimizers the slowest counts, also one that was made and has not stepped yet, unless it lags far behind: a
trial shall have seen all of them, and not wait for one that steps once in a while. Each step of torch's own class is
told once it is done: one that a gradient scaler skips is not, and neither is a micro-step that accumulates.
"""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from ..guard import guarded
from . import settings
from .channel import CHANNEL
from .phases import PHASES

_MOST_LAG = 5


class Steps:
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
        self.parameter_bytes = (self.parameter_bytes or 0) + sum(map(_bytes, parameters))
        self.gradient_bytes = (self.gradient_bytes or 0) + sum(map(_bytes, gradients))
        self.optimizer = self.optimizer or type(optimizer).__name__

    def _forget(self, key: int) -> None:
        self._alive.pop(key, None)
        self._orphaned = max(self._orphaned, self._counts.pop(key, 0))


STEPS = Steps()


def watch(torch: Any) -> None:
    """Listen to the steps of all optimizers."""
    module: Any = sys.modules["torch.optim.optimizer"]  # `torch.optim` deletes the name
    module.register_optimizer_step_pre_hook(_before)
    module.register_optimizer_step_post_hook(_make_hook(torch))
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
def _before(_optimizer: Any, arguments: Any, named: Any) -> None:
    closure = arguments[1] if len(arguments) > 1 else named.get("closure")
    PHASES.step_begins(has_closure=callable(closure))


def _make_hook(torch: Any) -> Any:
    after = guarded(_after)

    def hook(optimizer: Any, _arguments: Any, _named: Any) -> None:
        after(torch, optimizer)

    return hook


def _after(torch: Any, optimizer: Any) -> None:
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
    from . import device, report  # noqa: PLC0415 - needed once

    if device.DEVICE.ooms > STEPS.ooms_told:
        STEPS.ooms_told = device.DEVICE.ooms
        report.send(torch, "step")


def _end_trial(torch: Any) -> None:
    """Stand still from here on: nothing more shall be written or printed."""
    from . import report  # noqa: PLC0415 - needed once

    STEPS.is_over = True
    report.send(torch, "steps")
    CHANNEL.stand_still()


def _bytes(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)  # a tensor that is spread over devices has a part here
    return int(local.numel() * local.element_size())
