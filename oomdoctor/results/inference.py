"""Memory of what is done with a model besides training it: evaluate between training steps, and generate tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EvaluationLimit = Literal["training", "evaluation", "next_step"]


@dataclass(frozen=True, slots=True)
class EvaluationMemory:
    """An evaluation between two training steps, at the maximum.

    Attributes:
        micro_batch: Samples in each of its batches.
        peak_allocated_bytes: Most bytes in live tensors while it ran.
        training_peak_allocated_bytes: Most bytes in live tensors during the training steps.
        limited_by: What makes the next larger size run out: `training`, which would without the evaluation too; else
            the `evaluation` itself, or the `next_step` of training, which fits where no evaluation came before it. None
            where memory is not the limit.
    """

    micro_batch: int
    peak_allocated_bytes: int
    training_peak_allocated_bytes: int
    limited_by: EvaluationLimit | None


@dataclass(frozen=True, slots=True)
class GenerationMemory:
    """What generating takes besides the model, at one size.

    Attributes:
        micro_batch: Samples that are generated at once.
        cache_bytes: Bytes of all keys and values at the end.
        logits_bytes: Bytes of the logits that the prompts' forward returned.
        logits_argument: Argument of the model's forward that was given as 1, so that it computed the logits of the last
            tokens alone, as `generate()` does; None where it has none.
        all_logits_bytes: Bytes of the prompts' logits without that; None where it has none, or that ran out.
        runs_without: Whether the size runs without it too; None where it has none.
    """

    micro_batch: int
    cache_bytes: int
    logits_bytes: int
    logits_argument: str | None
    all_logits_bytes: int | None = None
    runs_without: bool | None = None
