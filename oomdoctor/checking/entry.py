"""One entry of a check: a question for a probe, and what its answer is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.probing.request import ProbeRequest

DEFAULT_TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One `[[check]]` on one card.

    Attributes:
        name: Its name; with the card behind it, as `pretrain on rtx-4090`, where the entry names several.
        request: The question.
        micro_batch: Size at which memory is recorded; None to go by the baseline, or else by the answer.
        min_micro_batch: Smallest maximum micro-batch that passes.
        max_accumulation_steps: Most accumulation steps that pass.
        max_memory_bytes: Most bytes that PyTorch may hold from the driver at `micro_batch`.
        headroom: Part of the capacity that has to stay free at `min_micro_batch`; None for no such limit.
        baseline: Whether the baseline file is compared.
        tolerance: Share by which a figure may be worse than in the baseline.
    """

    name: str
    request: ProbeRequest
    micro_batch: int | None = None
    min_micro_batch: int | None = None
    max_accumulation_steps: int | None = None
    max_memory_bytes: int | None = None
    headroom: float | None = None
    baseline: bool = False
    tolerance: float = DEFAULT_TOLERANCE
