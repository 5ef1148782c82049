"""Find lines whose memory grows step after step.

No step is marked in a history, so it is read from the stacks where a loop of the program starts over: where a line of a
function outside of PyTorch, above every module's forward pass, comes after a line further down in the same function.
Loops inside of a forward pass, over a model's layers, start over too, but in a stack of their own; and they are not
steps. Where a backward pass ends, another stretch begins as well.

A leak is a stack some of whose memory is retained, at the moment that counts, from at least three such stretches, from
most of those in which it allocated at all, and until lately; and what has grown so is a good part of what is held, for
many programs keep the numbers that they will plot. Weights are allocated in one stretch, and so is optimizer
state; activations, batches and gradients are retained from the latest stretch, and perhaps from the one before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.composition import main_category
from oomdoctor.diagnosis.snapshot.lifetimes import OLDER
from oomdoctor.diagnosis.snapshot.origins import is_torch
from oomdoctor.diagnosis.snapshot.raw import Action
from oomdoctor.results import Category, GrowingLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.snapshot.history import History
    from oomdoctor.diagnosis.snapshot.labelled import Labelled
    from oomdoctor.diagnosis.snapshot.origins import StackFacts
    from oomdoctor.diagnosis.snapshot.raw import Stack
    from oomdoctor.results import SourceLine

_FEWEST_STRETCHES: Final = 3
_MOST_LINES: Final = 10
_LATELY_SHARE: Final = 4  # the last quarter of the history, or the last stretches
_LATEST_STRETCHES: Final = 4
_LEAST_SHARE: Final = 32  # of what is held from the driver; less cannot be why it ran out
_PASSED_THROUGH: Final = re.compile(
    r"[/\\]torch[/\\](?:multiprocessing|distributed[/\\](?:run|launch\w*|elastic|launcher)|utils[/\\]_contextlib|amp)\b"
)


def growing_lines(
    history: History, blocks: Sequence[Labelled], stacks: Sequence[Stack], facts: Sequence[StackFacts]
) -> tuple[GrowingLine, ...]:
    """Lines whose memory grew, worst first.

    Args:
        history: The device's history.
        blocks: Its lifetimes with their categories and lines.
        stacks: The snapshot's stacks.
        facts: What is known of each of them.
    """
    borders = stretches(history, stacks, facts)
    if len(borders) < _FEWEST_STRETCHES:
        return ()
    grown = _Growth(history, borders)
    for block in blocks:
        grown.take(block)
    return grown.lines()


def stretches(history: History, stacks: Sequence[Stack], facts: Sequence[StackFacts]) -> list[int]:
    """Events at which a loop of the program starts over or a backward pass has ended, in order."""
    outer = [_outside_of_torch(stack) for stack in stacks]
    borders = []
    before: int | None = None
    backward = False
    for index, event in enumerate(history.device.events[: history.moment]):
        if event.action is not Action.ALLOC:
            continue
        if facts[event.stack].on_engine:
            backward = True
            continue
        restarted = before is not None and before != event.stack and _starts_over(outer[before], outer[event.stack])
        if restarted or backward:
            borders.append(index)
        before, backward = event.stack, False
    return borders


def _outside_of_torch(stack: Stack) -> Stack:
    """The outermost frames, outermost first, down to where PyTorch is called."""
    found = []
    for frame in reversed(stack):
        if is_torch(frame.path) and not _PASSED_THROUGH.search(frame.path):
            break
        found.append(frame)
    return tuple(found)


def _starts_over(before: Stack, now: Stack) -> bool:
    """Whether the first frames that differ are of one function, and the later stack is further up in it."""
    for old, new in zip(before, now, strict=False):
        if old != new:
            return old.path == new.path and old.function == new.function and new.line < old.line
    return False


class _Growth:
    """What each stack allocated and retained, stretch by stretch."""

    def __init__(self, history: History, borders: Sequence[int]) -> None:
        self.history = history
        self.borders = borders
        self.allocated_in: defaultdict[int, set[int]] = defaultdict(set)
        self.retained: defaultdict[int, list[Labelled]] = defaultdict(list)

    def take(self, block: Labelled) -> None:
        """Take a block into account."""
        lifetime = block.lifetime
        if OLDER < lifetime.born < self.history.moment and block.category is not Category.WORKSPACE:
            self.allocated_in[lifetime.stack].add(self._stretch(lifetime.born))
        if self.history.is_live_at_moment(lifetime):
            self.retained[lifetime.stack].append(block)

    def lines(self) -> tuple[GrowingLine, ...]:
        """Lines of the stacks that grew, together."""
        by_line: defaultdict[SourceLine | None, list[Labelled]] = defaultdict(list)
        for stack, blocks in self.retained.items():
            if self._grew(stack, blocks):
                by_line[blocks[-1].place] += blocks
        lines = [self._line(place, blocks) for place, blocks in by_line.items()]
        grown = sum(line.last_bytes - line.first_bytes for line in lines)
        if grown * _LEAST_SHARE < self.history.reserved[self.history.moment]:
            return ()
        lines.sort(key=lambda line: line.first_bytes - line.last_bytes)
        return tuple(lines[:_MOST_LINES])

    def _stretch(self, event: int) -> int:
        return bisect_right(self.borders, event)

    def _grew(self, stack: int, blocks: Sequence[Labelled]) -> bool:
        from_stretches = {self._stretch(block.lifetime.born) for block in blocks if block.lifetime.born > OLDER}
        if len(from_stretches) < _FEWEST_STRETCHES or 2 * len(from_stretches) < len(self.allocated_in[stack]):
            return False
        last = max(block.lifetime.born for block in blocks)
        lately = self.history.moment - self.history.moment // _LATELY_SHARE
        return last >= lately or self._stretch(last) >= len(self.borders) - _LATEST_STRETCHES

    def _line(self, place: SourceLine | None, blocks: Sequence[Labelled]) -> GrowingLine:
        first = min(self._stretch(block.lifetime.born) for block in blocks if block.lifetime.born > OLDER)
        early = [block for block in blocks if self._stretch(block.lifetime.born) <= first]
        sizes: Counter[Category] = Counter()
        for block in blocks:
            sizes[block.category] += block.lifetime.size
        return GrowingLine(
            place=place,
            category=main_category(sizes),
            first_bytes=sum(block.lifetime.size for block in early),
            last_bytes=sum(sizes.values()),
            first_blocks=len(early),
            last_blocks=len(blocks),
        )
