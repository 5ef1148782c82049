"""Where in the program something happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TrainingPhase(StrEnum):
    """What the program was doing, as its traceback tells."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    MODEL_TO_DEVICE = "model_to_device"
    BATCH_TO_DEVICE = "batch_to_device"
    CHECKPOINT_LOAD = "checkpoint_load"
    EVALUATION = "evaluation"
    DATA_LOADING = "data_loading"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the user's own code.

    Attributes:
        path: As the traceback prints it.
        line: From 1.
        function: The function's name, such as `train`; None where it is not printed.
        code: The line's text; None where it is not printed.
    """

    path: str
    line: int
    function: str | None = None
    code: str | None = None
