"""Memory at the largest size: the least in which it runs, and what an evaluation between training steps takes. Pure.

A size runs in less memory than it took where workspaces can be given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results import EvaluationMemory, LeastMemory, Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oomdoctor.results import EvaluationBetween, EvaluationLimit, Trial

_WORTH: Final = 0.02
"""Part of the peak that a workspace takes from which on it is worth trials to see what a size does without."""
_CLOSE: Final = 0.05
"""Part of the peak that may stay unknown. A further trial may need a process of its own, which takes seconds."""
_MOST_TRIALS: Final = 3


def find_least_memory(trials: Iterable[Trial], size: int, run: Callable[[int], Trial]) -> LeastMemory | None:
    """Bisect the memory in which a size runs, down from the most that it took.

    Args:
        trials: The trials so far.
        size: Its micro-batch.
        run: Runs the size with so many bytes for the allocator.

    Returns:
        What was found, each figure of it tested; None where the size fits in no trial, or workspaces are too small a
        part of the peak, so that nothing is run.
    """
    fitting = [trial for trial in trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    if not fitting:
        return None
    trial = max(fitting, key=lambda trial: trial.peak_reserved_bytes or 0)
    reserved, allocated = trial.peak_reserved_bytes or 0, trial.peak_allocated_bytes or 0
    if trial.workspace_bytes <= _WORTH * reserved:
        return None
    # What is left without the largest workspace cannot be given up, whatever else is.
    least, below, ran_out, runs = reserved, allocated - trial.workspace_bytes, None, 0
    while runs < _MOST_TRIALS and least - below > _CLOSE * reserved:
        middle, runs = (least + below) // 2, runs + 1
        tried = run(middle)
        if tried.outcome is Outcome.FITS:
            least = middle
        else:
            below = ran_out = middle
    return LeastMemory(size, reserved, least, ran_out, runs)


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
    phases = at_maximum[-1].phases
    training_bytes = max(phase.peak_allocated_bytes for phase in phases if phase.phase is not PhaseName.EVALUATION)
    peak_bytes = at_maximum[-1].evaluation_peak_bytes or 0
    above = [trial for trial in trials if trial.micro_batch == maximum + 1 and trial.outcome is Outcome.OOM]
    limit = _limit(max(above, key=lambda trial: trial.allowed_bytes), fits_without) if above else None
    return EvaluationMemory(asked.micro_batch or maximum, peak_bytes, training_bytes, limit)


def _limit(above: Trial, fits_without: Callable[[int], bool]) -> EvaluationLimit:
    """Return what made a size run out, above which nothing fits."""
    if above.evaluation_peak_bytes is None or not fits_without(above.micro_batch):
        return "training"
    return "evaluation" if above.phases[-1].phase is PhaseName.EVALUATION else "next_step"
