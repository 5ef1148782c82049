"""Which of the user's lines had allocated what was live at the peak, or when memory ran out."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnosis.snapshot.history import replay
from oomdoctor.diagnosis.snapshot.labelled import label
from oomdoctor.diagnosis.snapshot.layout import read_layout
from oomdoctor.diagnosis.snapshot.lifetimes import OLDER
from oomdoctor.diagnosis.snapshot.origins import read_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.snapshot.labelled import Labelled
    from oomdoctor.diagnosis.snapshot.raw import DeviceSnapshot, RawSnapshot
    from oomdoctor.results import SourceLine

MOST_LINES: Final = 5
"""Lines that are named."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one line had allocated.

    Attributes:
        place: The innermost line of the user's; None where there is none in the stack.
        otherwise: What to call it then: the innermost frame, or why there is none.
        size_bytes: Bytes in its blocks.
        blocks: How many.
    """

    place: SourceLine | None
    otherwise: str
    size_bytes: int
    blocks: int


def held_lines(snapshot: dict[str, Any], device: int) -> tuple[Held, ...]:
    """Every line that had memory at the moment that counts, the one with most first.

    Args:
        snapshot: As `torch.cuda.memory._snapshot` gives it.
        device: Index of the GPU.
    """
    raw = read_layout(snapshot, "the test's memory", sys.maxsize)
    found = next((each for each in raw.devices if each.index == device), None)
    return () if found is None else _lines(_live(raw, found))


def _live(raw: RawSnapshot, device: DeviceSnapshot) -> list[Labelled]:
    history = replay(device)
    moment = history.peak if history.failure is None else history.moment
    blocks = label(history, [read_stack(stack) for stack in raw.stacks], None)
    return [block for block in blocks if history.is_live(block.lifetime, moment)]


def _lines(live: Sequence[Labelled]) -> tuple[Held, ...]:
    sizes: defaultdict[tuple[SourceLine | None, str], list[int]] = defaultdict(list)
    for block in live:
        sizes[block.place, "" if block.place else _otherwise(block)].append(block.lifetime.size)
    lines = [Held(place, otherwise, sum(of), len(of)) for (place, otherwise), of in sizes.items()]
    return tuple(sorted(lines, key=_order))


def _otherwise(block: Labelled) -> str:
    if block.innermost is not None:
        return block.innermost
    return "before the test, line unknown" if block.lifetime.born == OLDER else "outside of Python"


def _order(line: Held) -> tuple[int, str, int]:
    path, number = (line.place.path, line.place.line) if line.place else (line.otherwise, 0)
    return -line.size_bytes, path, number
