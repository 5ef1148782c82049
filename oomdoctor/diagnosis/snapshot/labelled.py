"""A block with what is known of it: its category, and the line that is to be named for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.diagnosis.snapshot.categories import categorise
from oomdoctor.diagnosis.snapshot.origins import Origin
from oomdoctor.diagnosis.snapshot.raw import Action

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.diagnosis.snapshot.history import History
    from oomdoctor.diagnosis.snapshot.lifetimes import Lifetime
    from oomdoctor.diagnosis.snapshot.origins import StackFacts
    from oomdoctor.results import Category, SourceLine


@dataclass(frozen=True, slots=True)
class Labelled:
    """One block.

    Attributes:
        lifetime: Where it lies and when it lived.
        category: What it is for.
        place: The user's own line that allocated it; of what backward allocated, the line that called backward.
        innermost: The innermost frame in one line.
    """

    lifetime: Lifetime
    category: Category
    place: SourceLine | None
    innermost: str | None


def label(
    history: History, stacks: Sequence[StackFacts], addresses: Mapping[int, Category] | None
) -> tuple[Labelled, ...]:
    """Say of every block what it is for and whose it is, in the order of the history's lifetimes."""
    callers = backward_callers(history, stacks)
    categories = categorise(history, stacks, addresses)
    found = []
    for lifetime, category in zip(history.lifetimes, categories, strict=True):
        stack = stacks[lifetime.stack]
        place = stack.place or callers.get(lifetime.born)
        found.append(Labelled(lifetime, category, place, stack.innermost))
    return tuple(found)


def backward_callers(history: History, stacks: Sequence[StackFacts]) -> dict[int, SourceLine]:
    """The line that waited for the autograd engine, for each event of the engine's thread.

    The engine's thread does not know who called it. But backward begins with a gradient of the loss itself, which the
    calling thread allocates.
    """
    callers: dict[int, SourceLine] = {}
    waiting: SourceLine | None = None
    for index, event in enumerate(history.device.events):
        if event.action not in {Action.ALLOC, Action.OOM}:
            continue
        stack = stacks[event.stack]
        if not stack.on_engine:
            waiting = stack.place if stack.origin is Origin.BACKWARD else None
        elif waiting is not None:
            callers[index] = waiting
    return callers
