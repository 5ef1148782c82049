"""Pieces of evidence sentences: numbers as far as there are any."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.results import Category, SourceLine

_LONGEST_QUOTATION: Final = 160


def held(situation: Situation) -> str:
    """The numbers in one clause, such as `: 20.43 GiB allocated, 2.59 GiB free, 3.75 GiB asked for`; maybe empty."""
    facts = situation.facts
    parts = [
        f"{format_size(size)} {word}"
        for size, word in (
            (facts.allocated_bytes, "allocated"),
            (facts.mps_other_bytes, "in other allocations"),
            (facts.mps_max_bytes, "allowed"),
            (facts.free_bytes, "free"),
            (facts.tried_bytes, "asked for"),
        )
        if size is not None
    ]
    return f": {', '.join(parts)}" if parts else ""


def at_batch(situation: Situation) -> str:
    """The batch size, as ` at batch size 8`, where it is known."""
    size = situation.batch_size
    return "" if size is None else f" at batch size {size}"


def mostly(situation: Situation, *categories: Category) -> str:
    """How much of what is allocated these categories are, by the snapshot."""
    part = situation.category_bytes(*categories) or 0
    whole = 0 if situation.snapshot is None else situation.snapshot.end.allocated_bytes
    names = [category.value.replace("_", " ") for category in categories]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{listed[:1].upper()}{listed[1:]} are {format_size(part)} of {format_size(whole)} allocated"


def at(line: SourceLine) -> str:
    """A line of code in a sentence, such as `` `train.py:31` ``."""
    return f"`{line.path}:{line.line}`"


def as_comment(line: SourceLine | None) -> str:
    """A line of code behind a command, such as `  # at train.py:31`; empty where it is not known."""
    return "" if line is None else f"  # at {line.path}:{line.line}"


def quoted(text: str) -> str:
    """The beginning of a message in quotation marks, cut between words."""
    return f"“{textwrap.shorten(text, _LONGEST_QUOTATION, placeholder=' …')}”"
