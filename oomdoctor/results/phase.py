"""The parts of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PhaseName(StrEnum):
    """The part of training that an allocation belongs to."""

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"  # of a command: forwards between `model.eval()` and `model.train()`


@dataclass(frozen=True, slots=True)
class Phase:
    """Memory of one phase of one iteration; where an iteration has several micro-steps, over all of them.

    Attributes:
        iteration: 0 for loading the model, then 1 and 2; the optimizer's state first exists in the second.
        phase: The phase.
        peak_allocated_bytes: Most bytes in live tensors during the phase.
        end_allocated_bytes: Bytes in live tensors when the phase last ended; the peak of a phase that failed.
    """

    iteration: int
    phase: PhaseName
    peak_allocated_bytes: int
    end_allocated_bytes: int
