"""What the worker answers when memory was to be recorded; nothing here imports torch, since the parent reads it."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.results import Outcome, StepMemory  # noqa: TC001 - reading an answer goes by the annotations


@dataclass(frozen=True, slots=True)
class Profiled:
    """What came of recording memory.

    Attributes:
        memory: What memory was made of; None where that could not be had.
        reason: Why it could not be had, or what it lacks; None where there is nothing to say.
        outcome: How the trial ended.
    """

    memory: StepMemory | None
    reason: str | None
    outcome: Outcome
