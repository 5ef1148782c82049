"""Go through a story once, and see what memory is made of at the moments that matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from oomdoctor.probing.profile.blocks import Block, Story

CATEGORIES: Final = tuple(Category)
ORDER: Final = {category: number for number, category in enumerate(CATEGORIES)}

Totals = tuple[int, ...]
"""Bytes by category, in the order of `Category`."""


def totals_by_moment(story: Story, moments: AbstractSet[int]) -> dict[int, Totals]:
    """Bytes by category at some moments."""
    return {moment: tuple(totals) for moment, totals in _sweep(story) if moment in moments}


def peaks_by_category(story: Story, begin: int, end: int) -> list[int]:
    """For each category the first moment between two, themselves among them, when it is largest."""
    largest, when = [-1] * len(CATEGORIES), [begin] * len(CATEGORIES)
    for moment, totals in _sweep(story):
        if begin <= moment <= end:
            for number, total in enumerate(totals):
                if total > largest[number]:
                    largest[number], when[number] = total, moment
    return when


def live_at(story: Story, moment: int) -> list[Block]:
    """The blocks that are live at a moment."""
    live = dict.fromkeys(story.before)
    for change in story.changes[:moment]:
        if change is not None and change[1] > 0:
            live[change[0]] = None
        elif change is not None:
            del live[change[0]]
    return list(live)


def _sweep(story: Story) -> Iterator[tuple[int, list[int]]]:
    """Each moment with the bytes by category then; it is one list, which changes."""
    totals = [0] * len(CATEGORIES)
    for block in story.before:
        totals[ORDER[block.category]] += block.size
    yield 0, totals
    for moment, change in enumerate(story.changes, start=1):
        if change is not None:
            totals[ORDER[change[0].category]] += change[1]
        yield moment, totals
