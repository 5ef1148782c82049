"""Which phase a process is in, and the borders between phases: each a position in the allocator's history.

An iteration ends with an optimizer step, and what comes after it belongs to the next one's forward. What a program does
before its first forward is loading.
"""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from .history import HISTORY

LOAD, FORWARD, BACKWARD, OPTIMIZER, EVALUATION = "load", "forward", "backward", "optimizer", "evaluation"


class Border(NamedTuple):
    """Where a phase begins, and the one before it ends.

    Attributes:
        iteration: Counted from 1; 0 for loading.
        phase: What begins.
        allocations: How many the allocator has counted until here.
        frees: Likewise.
        allocated_bytes: In live tensors here.
    """

    iteration: int
    phase: str
    allocations: int
    frees: int
    allocated_bytes: int


class Phases:
    """The phases of a process until now.

    Attributes:
        iteration: The current one.
        borders: All of them, in order.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.iteration = 0
        self.borders = [Border(0, LOAD, 0, 0, 0)]
        self._backwards = 0
        self._is_in_step = False
        self._was_trained = False
        self._evaluated: Any = None
        self._opened = 0

    @property
    def phase(self) -> str:
        """The current one."""
        return self.borders[-1].phase

    def named_now(self, *, has_gradients: bool) -> str:
        """The current phase, where nothing that comes later can correct it.

        Many models are made by a library that calls `eval()`, and trained without `train()`.
        """
        if self.phase == EVALUATION and has_gradients and not self._was_trained:
            return FORWARD
        return self.phase

    def forward_begins(self, module: Any) -> None:
        """The first module is called, or the first after an evaluation."""
        if self.phase != LOAD:
            return
        self.iteration = 1
        if self._evaluated is None or module.training:
            self._enter(FORWARD)
        else:
            self._open_evaluation()

    def mode_changed(self, module: Any, *, is_training: bool) -> None:
        """`train()` or `eval()` was called."""
        if is_training:
            self._was_trained = True
            self._evaluated = None
            if self.phase == EVALUATION:
                self._enter(FORWARD)
            return
        self._evaluated = weakref.ref(module)
        if self.phase == FORWARD and not self._is_in_step:
            self._open_evaluation()

    def backward_begins(self) -> None:
        """The engine is asked for; the outermost backward counts."""
        self._backwards += 1
        if self._backwards == 1:
            self._dismiss_evaluation()
            self.iteration = max(1, self.iteration)
            self._enter(BACKWARD)

    def backward_ended(self) -> None:
        """The engine is let go."""
        self._backwards -= 1
        if self._backwards == 0:
            self._enter(OPTIMIZER if self._is_in_step else FORWARD)

    def step_begins(self, *, has_closure: bool) -> None:
        """An optimizer's step begins; one with a closure begins with a forward."""
        if self._backwards:  # one optimizer for each parameter, which steps in backward
            return
        self._is_in_step = True
        if has_closure:
            return
        last = self.borders[-1]
        if len(self.borders) > 1 and last.phase == FORWARD and self.borders[-2].phase == BACKWARD:
            self.borders[-1] = last._replace(phase=OPTIMIZER)  # unscaling and clipping of gradients
        else:
            self._enter(OPTIMIZER)

    def step_ended(self, done: int) -> None:
        """An optimizer's step has ended.

        Args:
            done: Steps that count until now.
        """
        if self._backwards:
            return
        self._is_in_step = False
        self.iteration = done + 1
        self._enter(FORWARD)

    def _open_evaluation(self) -> None:
        self._opened = len(self.borders)
        self._enter(EVALUATION)

    def _dismiss_evaluation(self) -> None:
        """What a backward follows, with no `train()` between, was none."""
        if self.phase == EVALUATION:
            for index in range(self._opened, len(self.borders)):
                self.borders[index] = self.borders[index]._replace(phase=FORWARD)

    def _enter(self, phase: str) -> None:
        self.borders.append(Border(self.iteration, phase, *HISTORY.position()))


PHASES = Phases()
