"""The trace of a step: its allocations and operator calls, from which its memory at other sizes.

On other cards follows.

Tensors are noted by their bytes. What an operator takes besides them may depend on the card, so the call is noted
instead, and a model is asked again for each card; so is which attention kernel a card would take.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.temporaries import Call


CACHE_EMPTIED: Final = 0
"""The cache was given back."""
_PYTORCH_AND_US: Final = ("torch.", "oomdoctor.")


class TemporariesEntry(NamedTuple):
    """Where an operator takes what its model says.

    Attributes:
        call: Which of the journal's calls.
        is_after: Whether its results are there already.
        in_backward: Whether autograd runs it, whose threads have workspaces of their own.
    """

    call: int
    is_after: bool
    in_backward: bool


class OperatorEnd(NamedTuple):
    """An operator ended, and gives back what it took."""


class WorkspacesCleared(NamedTuple):
    """Libraries' workspaces were given back."""


class PhaseMark(NamedTuple):
    """A phase began or ended, as whoever keeps the journal says.

    Attributes:
        phase: Which.
        is_end: Whether it ended.
    """

    phase: object
    is_end: bool


Entry = int | TemporariesEntry | OperatorEnd | WorkspacesCleared | PhaseMark
"""Bytes of an allocation, `-1 - position` of one that is given back, `EMPTIED`, or what has to be asked again."""


class OpTrace:
    """Notes of everything that changes memory.

    Args:
        rivals: Cards whose choice of kernels is noted beside that of the card that is emulated.

    Attributes:
        entries: What happened, in order.
        calls: The calls that sections speak of.
        choices: Of each rival, what it would have chosen, in order.
        questions: What the target asked about the GPU.
    """

    def __init__(self, rivals: Sequence[Card]) -> None:
        self._rivals = rivals
        self._positions: dict[int, int] = {}
        self._count = 0
        self._indices: dict[int, int] = {}
        self._starts: tuple[int, int, int] | None = None
        self._before: dict[int, int] = {}
        self.entries: list[Entry] = []
        self.calls: list[Call] = []
        self.choices: list[list[object]] = [[] for _ in rivals]
        self.questions: set[str] = set()
        self.is_inside = False

    def begin(self) -> None:
        """What is noted up to the first time stays; what was noted since is forgotten."""
        if self._starts is None:
            self._starts = (len(self.entries), len(self.calls), self._count)
            self._before = dict(self._positions)
        entries, calls, self._count = self._starts
        del self.entries[entries:], self.calls[calls:]
        self._indices = {id(call): index for index, call in enumerate(self.calls)}
        self.choices = [[] for _ in self._rivals]

    @property
    def start(self) -> int:
        """How many entries are from before the beginning."""
        return 0 if self._starts is None else self._starts[0]

    @property
    def is_as_it_began(self) -> bool:
        """Whether nothing from before was given back, and nothing since is left."""
        return self._positions == self._before

    def allocated(self, address: int, nbytes: int) -> None:
        """A block was handed out."""
        if not self.is_inside:
            self._positions[address] = self._count
            self._count += 1
            self.entries.append(nbytes)

    def freed(self, address: int) -> None:
        """A block was given back; those that operators take are no part of the notes."""
        position = self._positions.pop(address, None)
        if position is not None:
            self.entries.append(-1 - position)

    def emptied(self) -> None:
        """The cache was given back."""
        self.entries.append(CACHE_EMPTIED)

    def cleared(self) -> None:
        """Libraries' workspaces were given back."""
        self.entries.append(WorkspacesCleared())

    def takes(self, call: Call, *, is_after: bool, in_backward: bool) -> None:
        """An operator takes what its model says."""
        index = self._indices.setdefault(id(call), len(self.calls))
        if index == len(self.calls):
            self.calls.append(call)
        self.entries.append(TemporariesEntry(index, is_after, in_backward))

    def ended(self) -> None:
        """The operator ended."""
        self.entries.append(OperatorEnd())

    def mark(self, phase: object, *, is_end: bool) -> None:
        """A phase begins or ends."""
        self.entries.append(PhaseMark(phase, is_end))

    def chosen(self, choose: Callable[[Card], object]) -> None:
        """A kernel was chosen by the card."""
        for card, choices in zip(self._rivals, self.choices, strict=True):
            choices.append(choose(card))

    def asked(self, what: str, answers: Callable[[Card], object]) -> None:
        """Somebody asked about the GPU; the target, where it was neither PyTorch nor oomdoctor."""
        # the only way to one's callers
        caller: Any = sys._getframe(3)  # noqa: SLF001
        if not f"{caller.f_globals.get('__package__')}.".startswith(_PYTORCH_AND_US):
            self.questions.add(what)
            self.chosen(answers)
