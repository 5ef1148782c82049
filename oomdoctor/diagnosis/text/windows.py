"""What is kept of a text: the lines around each place that may tell of an error, in bounded memory.

A place holds on to the region that it was found in while that region is being searched, and to a copy of what is
around it after that. Lines are cleaned at the very end, for those that are still kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from oomdoctor.diagnosis.evidence import Window
from oomdoctor.diagnosis.text.cleaning import LONGEST_LINE, CleanLine, clean, segments, unglue
from oomdoctor.diagnosis.text.reading import AFTER_BYTES, BEFORE_BYTES
from oomdoctor.diagnosis.text.steps import read_step

LINES_BEFORE: Final = 200
LINES_AFTER: Final = 40
_MOST_CHARACTERS: Final = 1 << 16  # of a window, its own line not counted
_MOST_LINES_LOOKED_AT: Final = 4000

# Places near each other have most of their lines in common.
_clean: Final = lru_cache(maxsize=512)(clean)
_read_step: Final = lru_cache(maxsize=512)(read_step)


@dataclass(slots=True)
class Place:
    """A line that may tell of an error.

    Attributes:
        data: The region, or what is left of it around the line.
        begin: Where in `data` the line begins.
        end: Where it ends, its line end not included.
        line_number: From 1.
        step: The latest training step known when it was read.
        count: How often it was found.
    """

    data: bytes
    begin: int
    end: int
    line_number: int
    step: int | None
    count: int = 1

    def let_go(self) -> None:
        """Keep what is around the line and not the whole region."""
        first = max(0, self.begin - BEFORE_BYTES)
        self.data = self.data[first : self.end + AFTER_BYTES]
        self.begin, self.end = self.begin - first, self.end - first


class Kept:
    """The first places and the last ones, each different from the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first: dict[object, Place] = {}
        self._last: OrderedDict[object, Place] = OrderedDict()

    def add(self, key: object, place: Place) -> None:
        """Keep a place, or count it where one of the same key is kept."""
        known = self._first.get(key) or self._last.get(key)
        if known is not None:
            known.count += 1
        elif len(self._first) < self._most:
            self._first[key] = place
        else:
            self._last[key] = place
            if len(self._last) > self._most:
                self._last.popitem(last=False)

    def places(self) -> tuple[Place, ...]:
        """All that is kept, in the order in which it was found."""
        return (*self._first.values(), *self._last.values())

    def let_go(self, region: bytes) -> None:
        """Hold on to a region no longer."""
        held = [place for place in self.places() if place.data is region]
        if len(held) * (BEFORE_BYTES + AFTER_BYTES) < len(region):  # else copies would take more than the region
            for place in held:
                place.let_go()


def build_window(place: Place, source: str) -> Window:
    """Clean the lines around a place; those of other processes are left out where prefixes tell them apart."""
    hit = clean(place.data[place.begin : place.end])
    *glued, text = unglue(hit.text)
    before = [*_before(place, hit.rank), *glued][-LINES_BEFORE:]
    after = _after(place, hit.rank)
    step = next((number for line in reversed(before) if (number := _read_step(line)) is not None), place.step)
    return Window(
        source=source,
        line_number=place.line_number,
        rank=hit.rank,
        lines=(*before, text[:LONGEST_LINE], *after),
        at=len(before),
        count=place.count,
        step=step,
    )


def _before(place: Place, rank: int | None) -> list[str]:
    earlier = place.data[max(0, place.begin - BEFORE_BYTES) : place.begin]
    own_line = earlier.endswith(b"\r")  # what the same line showed before the error was printed over it
    physical = earlier.split(b"\n") if own_line else earlier.removesuffix(b"\n").split(b"\n")
    if not earlier:
        return []
    kept: list[str] = []
    room = _MOST_CHARACTERS
    for line in reversed(physical[-_MOST_LINES_LOOKED_AT:]):
        for segment in reversed(segments(line.strip(b"\r"))):
            cleaned = _clean(segment)
            room -= len(cleaned.text) if _is_own(cleaned, rank) else 0
            if len(kept) == LINES_BEFORE or room < 0:
                return kept[::-1]
            if _is_own(cleaned, rank):
                kept.append(cleaned.text)
    return kept[::-1]


def _after(place: Place, rank: int | None) -> list[str]:
    later = place.data[place.end : place.end + AFTER_BYTES].removeprefix(b"\r\n").removeprefix(b"\n")
    kept: list[str] = []
    room = _MOST_CHARACTERS
    if not later:
        return kept
    for line in later.removesuffix(b"\n").split(b"\n")[:_MOST_LINES_LOOKED_AT]:
        for segment in segments(line.strip(b"\r")):
            cleaned = _clean(segment)
            room -= len(cleaned.text) if _is_own(cleaned, rank) else 0
            if len(kept) == LINES_AFTER or room < 0:
                return kept
            if _is_own(cleaned, rank):
                kept.append(cleaned.text)
    return kept


def _is_own(line: CleanLine, rank: int | None) -> bool:
    return line.rank == rank
