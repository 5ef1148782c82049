"""Memory of trials by phase: what a baseline keeps where nobody can say what the memory is made of.

That is so of a command, and of a trace. Two sizes are kept: the first that is tried, which every probe tries, and the
one whose memory was asked for. Where the second does not fit any more, the first still shows which phase has grown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.command.template import accumulates
from oomdoctor.results import Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.results import ProbeResult, Trial

_ORDER: Final = {phase.value: rank for rank, phase in enumerate(PhaseName)}


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Memory at one micro-batch.

    Attributes:
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step; above 1 gradients stay alive during a forward.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        phases: Most bytes in live tensors by phase, such as `iteration 2 backward`.
    """

    micro_batch: int
    micro_steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phases: Mapping[str, int]

    @property
    def peak_phase(self) -> str:
        """The first phase that has the peak."""
        return max(sorted(self.phases, key=place_of), key=lambda name: self.phases[name], default="an unknown phase")

    @property
    def iterations(self) -> int:
        """The last iteration that was begun."""
        return max((place_of(name)[0] for name in self.phases), default=0)


def place_of(phase: str) -> tuple[int, int, str]:
    """Where a phase stands in the order of time; the iteration comes first."""
    words = phase.split(" ")
    number = words[1] if len(words) > 1 else ""
    return int(number) if number.isdecimal() else 0, _ORDER.get(words[-1], len(_ORDER)), phase


def trial_figures(result: ProbeResult, size: int | None) -> dict[int, TrialFigures]:
    """What a baseline keeps of the trials, by micro-batch.

    Args:
        result: What the probe found.
        size: Micro-batch whose memory was asked for; None for the largest that fits.
    """
    first = next((trial.micro_batch for trial in result.trials if trial.outcome is Outcome.FITS), 0)
    sizes = sorted({first, size or result.micro_batch.maximum})
    found = {one: _trial_at(one, result) for one in sizes}
    return {one: _figures(trial, result) for one, trial in found.items() if trial is not None}


def _trial_at(size: int, result: ProbeResult) -> Trial | None:
    """The first trial at a size that fits, with all memory: later ones may have had more accumulation steps."""
    fitting = [trial for trial in result.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    most = max((trial.allowed_bytes for trial in fitting), default=0)
    return next((trial for trial in fitting if trial.allowed_bytes == most and trial.phases), None)


def _figures(trial: Trial, result: ProbeResult) -> TrialFigures:
    phases: dict[str, int] = {}
    for phase in trial.phases:
        name = f"iteration {phase.iteration} {phase.phase.value}"
        phases[name] = max(phases.get(name, 0), phase.peak_allocated_bytes)
    is_whole = result.micro_batch.limited_by == "target" and trial.micro_batch == result.micro_batch.maximum
    accumulated = result.command_plan is None or accumulates(result.command_plan.words)
    return TrialFigures(
        micro_batch=trial.micro_batch,
        micro_steps=1 if is_whole or not accumulated else 2,
        peak_allocated_bytes=trial.peak_allocated_bytes or 0,
        peak_reserved_bytes=trial.peak_reserved_bytes or 0,
        phases=phases,
    )
