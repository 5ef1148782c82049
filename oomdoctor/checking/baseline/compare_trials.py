"""The memory of trials at one micro-batch, then and now: which phase of training has grown.

What fails: the peaks, and each phase that both have, where they are worse by more than the tolerance. A phase that only
one has, such as an evaluation that was added, fails nothing by itself: where it needs more than training, the peak
tells.
Growth that stays, such as the weights', is in every later phase too; of several iterations the first in which a phase
moved is told, and those that moved least come last, so that the first line is where it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.checking.baseline import wording
from oomdoctor.checking.baseline.growth import Growth
from oomdoctor.checking.baseline.trials import TrialFigures, place_of
from oomdoctor.results import FigureKind, Movement

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAJOR: Final = 0.25
"""Share of the largest growth below which a phase's growth is not where it begins, such as that of the first batch."""


def compare_trials(before: TrialFigures, after: TrialFigures, *, tolerance: float) -> tuple[Movement, ...]:
    """What moved: what is worse first, then what is better; in each the peaks, then the phases as they come in time.

    Args:
        before: The baseline's figures.
        after: Those of now, at the same size.
        tolerance: Share by which a figure may be worse.
    """
    growth = Growth(before, after, tolerance)
    phases = list(_phases(growth, before, after))
    most = max((_change(phase) for phase in phases), default=0)
    found = [*growth.peaks(), *sorted(phases, key=lambda phase: _change(phase) < _MAJOR * most)]
    return tuple(sorted(found, key=lambda movement: (not movement.is_beyond, _change(movement) < 0)))


def _change(movement: Movement) -> int:
    return (movement.after or 0) - (movement.before or 0)


def _phases(growth: Growth, before: TrialFigures, after: TrialFigures) -> Iterator[Movement]:
    told: set[tuple[str, int]] = set()
    # More steps than then, or fewer, are another question and no memory.
    last = min(before.iterations, after.iterations)
    for name in sorted({**before.phases, **after.phases}, key=place_of):
        old, new = before.phases.get(name), after.phases.get(name)
        change, kind = (new or 0) - (old or 0), name.rpartition(" ")[2]
        if not change or abs(change) < growth.floor or place_of(name)[0] > last or (kind, change) in told:
            continue
        told.add((kind, change))
        is_beyond = old is not None and new is not None and growth.is_part_worse(old, new)
        text = f"{name}: gone" if new is None else wording.plain(name, old or 0, new, after)
        yield Movement(FigureKind.PHASE, name, old, new, is_beyond, text)
