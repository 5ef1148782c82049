"""What the worker notes while a step runs, to be joined with the allocator's history later.

A mark is tied to the history by how many blocks had been allocated and freed before it, not by time: the same step
gives the same marks, and no two of them can change places.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from oomdoctor.probing.profile.history import count_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Category, PhaseName


class Kind(Enum):
    """What happened."""

    BEGIN = auto()  # a phase began; the value is a `Stage`
    END = auto()  # it ended
    ENTER = auto()  # a module's forward began; the value is the module's index
    LEAVE = auto()  # it ended
    BACK = auto()  # the backward reached what a module had computed; its index, or None for what no module had
    LABEL = auto()  # some blocks are known to be of a category; the value is a sequence of `Label`
    CLEAR = auto()  # cuBLAS gives its workspaces back
    CLEARED = auto()  # it has


class Mark(NamedTuple):
    """One note.

    Attributes:
        events: Blocks allocated and freed before it.
        allocated_bytes: Bytes in live blocks at that moment, as the allocator counts them.
        kind: What happened.
        value: More about it.
    """

    events: int
    allocated_bytes: int
    kind: Kind
    value: Any


@dataclass(frozen=True, slots=True)
class Stage:
    """A phase of one micro-step of one iteration."""

    iteration: int
    micro_step: int
    phase: PhaseName


class Label(NamedTuple):
    """What the block at an address is for, and whose it is: a module's index, or None."""

    address: int
    category: Category
    module: int | None


class Marks(list[Mark]):
    """Marks in order of time."""

    def note(self, kind: Kind, value: object = None) -> None:
        """Note that something happens now."""
        count, allocated_bytes = count_now()
        self.append(Mark(count, allocated_bytes, kind, value))

    def label(self, labels: Sequence[Label]) -> None:
        """Note what some blocks are for, while they are live."""
        if labels:
            self.note(Kind.LABEL, labels)
