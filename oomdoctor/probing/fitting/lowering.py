"""From what a step does to what the allocator of one card is asked for: operators' models are asked for that card."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.tracing.journal import Cleared, Ended
from oomdoctor.tracing.taking import Workspace
from oomdoctor.tracing.temporaries import temporaries_of

if TYPE_CHECKING:
    from oomdoctor.devices.card import Card
    from oomdoctor.probing.fitting.scaling import Steps
    from oomdoctor.tracing.journal import Section
    from oomdoctor.tracing.taking import Taken

Scripts = tuple[tuple[tuple["Taken", ...], tuple["Taken", ...]], ...]
"""What each call takes before its results are made, and after."""
Events = list[int]
"""Bytes of an allocation, `-1 - position` of one that is given back, or 0 for the cache."""


def scripts_for(steps: Steps, card: Card) -> Scripts:
    """What the calls take on a card."""
    answers = (temporaries_of(replace(call, card=card)) for call in steps.calls)
    return tuple((answer.before, answer.after) for answer in answers)


def lower(steps: Steps, scripts: Scripts) -> tuple[Events, Events]:
    """What the allocator is asked for while the target is loaded, and in the trial."""
    lowering = _Lowering(scripts)
    for entry in steps.entries[: steps.start]:
        lowering.add(entry)
    loading, lowering.events = lowering.events, []
    for entry in steps.entries[steps.start :]:
        lowering.add(entry)
    return loading, lowering.events


class _Lowering:
    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._positions: list[int] = []
        self._count = 0
        self._held: list[int | None] = []
        self._workspaces: dict[object, int] = {}
        self.events: Events = []

    def add(self, entry: object) -> None:
        if isinstance(entry, int):
            self._add_number(entry)
        elif isinstance(entry, Ended):
            self._free(self._held)
            self._held = []
        elif isinstance(entry, Cleared):
            self._free([*self._workspaces.values()])
            self._workspaces.clear()
        else:
            self._add_section(entry)  # type: ignore[arg-type] - what is left of the kinds

    def _add_number(self, number: int) -> None:
        if number > 0:
            self._positions.append(self._allocate(number))
        else:
            self.events.append(-1 - self._positions[-1 - number] if number else 0)

    def _add_section(self, section: Section) -> None:
        for step in self._scripts[section.call][section.is_after]:
            if isinstance(step, Workspace):
                key = (step.library, section.in_backward)
                if key not in self._workspaces and step.nbytes:
                    self._workspaces[key] = self._allocate(step.nbytes)
            elif step < 0:
                self._free([self._held[-1 - step]])
                self._held[-1 - step] = None
            else:
                self._held.append(self._allocate(step) if step else None)

    def _allocate(self, nbytes: int) -> int:
        self.events.append(nbytes)
        self._count += 1
        return self._count - 1

    def _free(self, positions: list[int | None] | list[int]) -> None:
        self.events += [-1 - position for position in positions if position is not None]
