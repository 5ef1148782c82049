"""From what a step does to what an allocator is asked for: what operators take is asked of their models, for a card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor.probing.fitting.phases import PhasePeaks
from oomdoctor.tracing.journal import Cleared, Ended, Mark, Section
from oomdoctor.tracing.taking import Workspace
from oomdoctor.tracing.temporaries import temporaries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.allocator.caching import CachingAllocator
    from oomdoctor.devices.card import Card
    from oomdoctor.probing.fitting.scaling import Steps
    from oomdoctor.tracing.journal import Entry
    from oomdoctor.tracing.taking import Taken

Scripts = tuple[tuple[tuple["Taken", ...], tuple["Taken", ...]], ...]
"""What each call takes before its results are made, and after."""
Run = tuple[list[int], "Section | Ended | Cleared | Mark | None"]
"""What happens to tensors, and what an operator does after that."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the allocator is asked for, but for what depends on the card.

    Attributes:
        loading: While the target is loaded.
        trial: In the trial.
    """

    loading: list[Run]
    trial: list[Run]


def program_of(steps: Steps) -> Program:
    """What a step asks for, in runs that need no look at what they are made of."""
    return Program(_runs(steps.entries[: steps.start]), _runs(steps.entries[steps.start :]))


def condensed(program: Program, scripts: Scripts) -> Program:
    """The same without the sections that take nothing, which are most, and without the ends that give nothing back."""
    return Program(_condensed(program.loading, scripts), _condensed(program.trial, scripts))


def _condensed(runs: list[Run], scripts: Scripts) -> list[Run]:
    kept: list[Run] = []
    numbers: list[int] = []
    takes = False
    for chunk, marker in runs:
        numbers += chunk
        if isinstance(marker, Section):
            if not scripts[marker.call][marker.is_after]:
                continue
            takes = True
        elif isinstance(marker, Ended):
            if not takes:
                continue
            takes = False
        kept.append((numbers, marker))
        numbers = []
    return kept


def what_takes(scripts: Scripts) -> object:
    """Which sections take something: programs are condensed alike where that is the same."""
    return tuple(bool(part) for script in scripts for part in script)


def scripts_for(steps: Steps, card: Card) -> Scripts:
    """What the calls take on a card."""
    answers = (temporaries_of(replace(call, card=card)) for call in steps.calls)
    return tuple((answer.before, answer.after) for answer in answers)


def shape_of(scripts: Scripts) -> object:
    """What scripts have in common that allocate and give back in the same order, whatever the bytes."""
    return tuple(
        tuple(step if not isinstance(step, Workspace) and step <= 0 else 1 for step in part)
        for script in scripts
        for part in script
    )


def _runs(entries: Sequence[Entry]) -> list[Run]:
    runs: list[Run] = []
    numbers: list[int] = []
    for entry in entries:
        if isinstance(entry, int):
            numbers.append(entry)
        else:
            runs.append((numbers, entry))
            numbers = []
    return [*runs, (numbers, None)]


class Player:
    """Asks an allocator for what a program says, on one card.

    Args:
        allocator: The allocator.
        scripts: What the program's calls take on the card.

    Attributes:
        peaks: What the phases hold.
    """

    def __init__(self, allocator: CachingAllocator, scripts: Scripts) -> None:
        self._allocator = allocator
        self._scripts = scripts
        self._addresses: list[int] = []
        self._held: list[int] = []
        self._workspaces: dict[object, int] = {}
        self.peaks = PhasePeaks(allocator)

    def play(self, runs: Sequence[Run]) -> None:
        """Allocate and give back.

        Raises:
            AllocationError: Memory is out.
        """
        malloc, free = self._allocator.malloc, self._allocator.free
        addresses = self._addresses
        for numbers, marker in runs:
            for number in numbers:
                if number > 0:
                    addresses.append(malloc(number))
                elif number < 0:
                    free(addresses[-1 - number])
                else:
                    self._allocator.empty_cache()
            if isinstance(marker, Section):
                self._take(marker, malloc)
            elif isinstance(marker, Mark):
                self.peaks.note(marker)
            elif marker is not None:
                self._give_back(is_workspace=isinstance(marker, Cleared))

    def _take(self, section: Section, malloc: Callable[[int], int]) -> None:
        for step in self._scripts[section.call][section.is_after]:
            if isinstance(step, Workspace):
                key = (step.library, section.in_backward)
                if key not in self._workspaces:
                    self._workspaces[key] = malloc(step.nbytes)
            elif step < 0:
                self._allocator.free(self._held[-1 - step])
                self._held[-1 - step] = 0
            else:
                self._held.append(malloc(step))

    def _give_back(self, *, is_workspace: bool) -> None:
        """The allocator gives no address for no bytes, and takes none back."""
        kept = [*self._workspaces.values()] if is_workspace else self._held
        for address in kept:
            self._allocator.free(address)
        if is_workspace:
            self._workspaces.clear()
        else:
            self._held = []
