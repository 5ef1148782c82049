"""What an evaluation between training steps takes, and whether it is what limits the micro-batch. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.results import EvaluationMemory, Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.results import EvaluationBetween, EvaluationLimit, Trial


def evaluation_memory(
    asked: EvaluationBetween, trials: Sequence[Trial], maximum: int, fits_without: Callable[[int], bool]
) -> EvaluationMemory | None:
    """Return what the evaluation takes at the maximum; None where no trial there tells.

    Args:
        asked: The evaluation.
        trials: All that were run.
        maximum: The largest size that fits.
        fits_without: Tells whether a size fits where nothing is evaluated.
    """
    at_maximum = [trial for trial in trials if trial.micro_batch == maximum and trial.outcome is Outcome.FITS]
    if not at_maximum:
        return None
    peaks = dict.fromkeys((True, False), 0)
    for phase in at_maximum[-1].phases:
        is_asked = phase.phase is PhaseName.EVALUATION
        peaks[is_asked] = max(peaks[is_asked], phase.peak_allocated_bytes)
    above = [trial for trial in trials if trial.micro_batch == maximum + 1 and trial.outcome is Outcome.OOM]
    limit = _limit(max(above, key=lambda trial: trial.allowed_bytes), fits_without) if above else None
    return EvaluationMemory(asked.micro_batch or maximum, peaks[True], peaks[False], limit)


def _limit(above: Trial, fits_without: Callable[[int], bool]) -> EvaluationLimit:
    """Return what made a size run out, above which nothing fits."""
    done = {phase.phase for phase in above.phases}
    if PhaseName.EVALUATION not in done or not fits_without(above.micro_batch):
        return "training"
    return "evaluation" if above.phases[-1].phase is PhaseName.EVALUATION else "next_step"
