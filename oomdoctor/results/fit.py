"""What fits each card: the largest micro-batch, and the plan that reaches the target batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.results.probe import Accumulation


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card's answer.

    Attributes:
        gpu: The card's key.
        maximum: The largest micro-batch; 0 where none fits.
        recommended: The largest that was tried and leaves the headroom free; 0 where none does.
        limited_by: What keeps it from being larger: `memory`, `target` (the whole target fits), `limit` (a limit that
            is not memory), or `model` (the model alone does not fit).
        plan: How to reach the target batch; None where nothing fits.
        notes: What its reader should know.
    """

    gpu: str
    maximum: int
    recommended: int
    limited_by: Literal["memory", "target", "limit", "model"]
    plan: Accumulation | None
    notes: tuple[str, ...]
