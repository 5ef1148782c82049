"""The phases of a training step as bands below a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.charts.labels import Words, longest_fitting
from oomdoctor.reports.charts.stack import event_position
from oomdoctor.results import PhaseName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.results import PhaseMemory, StepMemory

_MOST_BANDS: Final = 60
"""Bands of one row; more are finer than a line."""

_NAMES: Final[Mapping[PhaseName, tuple[str, ...]]] = MappingProxyType(
    {
        PhaseName.LOAD: ("load",),
        PhaseName.FORWARD: ("forward", "fwd"),
        PhaseName.BACKWARD: ("backward", "bwd"),
        PhaseName.OPTIMIZER: ("optimizer", "opt"),
        PhaseName.EVALUATION: ("evaluation", "eval"),
    }
)


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of a timeline.

    Attributes:
        left: Where it begins, in units of the plot.
        width: How long it is, in the same units.
        words: What it is, as far as there is room.
        phase: The phase, for its shade; None for an iteration.
    """

    left: float
    width: float
    words: Words
    phase: PhaseName | None


def iterations(memory: StepMemory) -> tuple[Band, ...]:
    """One band an iteration."""
    groups = groupby(_drawn(memory), key=lambda phase: phase.iteration)
    return tuple(_band(memory, list(phases), _iteration_names(number), None) for number, phases in groups)[:_MOST_BANDS]


def phases(memory: StepMemory) -> tuple[Band, ...]:
    """One band a phase of a micro-step."""
    return tuple(_band(memory, [phase], _NAMES[phase.phase], phase.phase) for phase in _drawn(memory)[:_MOST_BANDS])


def _iteration_names(number: int) -> tuple[str, ...]:
    return (f"iteration {number}", f"it. {number}", str(number))


def _drawn(memory: StepMemory) -> list[PhaseMemory]:
    """Phases in which something was allocated or freed."""
    return [phase for phase in memory.phases if memory.timeline and phase.last_event > phase.first_event]


def _band(memory: StepMemory, spanned: Sequence[PhaseMemory], names: Sequence[str], phase: PhaseName | None) -> Band:
    left = event_position(memory.timeline, spanned[0].first_event)
    right = event_position(memory.timeline, spanned[-1].last_event)
    width = round(max(0.0, right - left), 1)
    return Band(left, width, longest_fitting(names, width), phase)
