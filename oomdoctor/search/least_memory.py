"""Find the least memory in which a size runs that takes more where it may, for workspaces that can be given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results import LeastMemory, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.results import Trial

_WORTH: Final = 0.02
"""Part of the peak that a workspace takes from which on it is worth trials to see what a size does without."""
_CLOSE: Final = 0.05
"""Part of the peak that may stay unknown. A further trial may need a process of its own, which takes seconds."""
_MOST_TRIALS: Final = 3


def find_least_memory(trial: Trial, run: Callable[[int], Trial]) -> LeastMemory | None:
    """Bisect the memory in which a size runs, down from what it takes.

    Args:
        trial: A trial of the size that fits.
        run: Runs the size with so many bytes for the allocator.

    Returns:
        What was found, each figure of it tested; None where workspaces are too small a part of the peak, so that
        nothing is run.
    """
    reserved, allocated = trial.peak_reserved_bytes or 0, trial.peak_allocated_bytes or 0
    if trial.workspace_bytes <= _WORTH * reserved:
        return None
    # What is left without the largest workspace cannot be given up, whatever else is.
    least, below, ran_out, trials = reserved, allocated - trial.workspace_bytes, None, 0
    while trials < _MOST_TRIALS and least - below > _CLOSE * reserved:
        middle, trials = (least + below) // 2, trials + 1
        tried = run(middle)
        if tried.outcome is Outcome.FITS:
            least = middle
        else:
            below = ran_out = middle
    return LeastMemory(trial.micro_batch, reserved, least, ran_out, trials)
