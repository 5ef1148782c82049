"""Composition of memory: at one moment, between two snapshots, over time, and lines that grow.

A history marks no training steps, so that they are read from the stacks: a step begins where a loop of the program
starts over, that is, where a line of a function outside of PyTorch, above every module's forward pass, comes after a
line further down in the same function. Loops inside of a forward pass, over a model's layers, start over too, but in a
stack of their own, and are not steps. Where a backward pass ends, another step begins as well.

A line leaks if memory that it allocated in at least three steps, in most of those in which it allocated at all, and in
late ones, is still alive at the moment of the failure, and is a good part of all memory: many programs keep a few
numbers that they will plot. Weights are allocated in one step, and so is optimizer state; activations, batches and
gradients are alive from the latest step, and perhaps from the one before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.snapshot.history import OLDER
from oomdoctor.diagnose.snapshot.layout import AllocatorAction
from oomdoctor.diagnose.snapshot.origins import is_torch
from oomdoctor.results import (
    Category,
    CategoryBytes,
    Composition,
    DifferingLine,
    GrowingLine,
    LiveAllocation,
    MemoryLine,
    SnapshotComparison,
    TimelinePoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.diagnose.snapshot.categories import LabelledBlock
    from oomdoctor.diagnose.snapshot.history import History
    from oomdoctor.diagnose.snapshot.layout import Stack
    from oomdoctor.diagnose.snapshot.origins import StackFacts
    from oomdoctor.results import SnapshotSummary, SourceLine


MOST_LINES: Final = 20
_MOST_BLOCKS: Final = 20


def compose(live: Sequence[LabelledBlock], reserved_bytes: int) -> Composition:
    """Sum up live blocks.

    Args:
        live: The blocks that are live at the moment.
        reserved_bytes: Bytes held from the driver then.
    """
    by_category: Counter[Category] = Counter()
    for block in live:
        by_category[block.category] += block.lifetime.size
    return Composition(
        allocated_bytes=sum(by_category.values()),
        reserved_bytes=reserved_bytes,
        categories=tuple(CategoryBytes(category, size) for category, size in _largest_first(by_category)),
        lines=_lines(live),
    )


def largest(live: Iterable[LabelledBlock]) -> tuple[LiveAllocation, ...]:
    """The largest of some live blocks, those that are alike as one, the lowest address first where sizes are equal."""
    blocks = sorted(live, key=lambda block: (-block.lifetime.size, block.lifetime.address))
    alike = Counter((block.lifetime.size, block.category, block.place, block.innermost) for block in blocks)
    return tuple(LiveAllocation(*block, blocks=count) for block, count in list(alike.items())[:_MOST_BLOCKS])


def main_category(sizes: Counter[Category]) -> Category:
    """The category that most of some memory is of."""
    return _largest_first(sizes)[0][0]


def _lines(live: Iterable[LabelledBlock]) -> tuple[MemoryLine, ...]:
    sizes: defaultdict[SourceLine | None, Counter[Category]] = defaultdict(Counter)
    blocks: Counter[SourceLine | None] = Counter()
    for block in live:
        sizes[block.place][block.category] += block.lifetime.size
        blocks[block.place] += 1
    lines = [MemoryLine(place, main_category(of), sum(of.values()), blocks[place]) for place, of in sizes.items()]
    lines.sort(key=lambda one: (-one.allocated_bytes, *((one.place.path, one.place.line) if one.place else ("", 0))))
    return tuple(lines[:MOST_LINES])


def _largest_first(sizes: Counter[Category]) -> list[tuple[Category, int]]:
    order = list(Category)
    return sorted(sizes.items(), key=lambda item: (-item[1], order.index(item[0])))


_MOST_DIFFERENCES: Final = 20


def compare(before: SnapshotSummary, after: SnapshotSummary) -> SnapshotComparison:
    """Compare two snapshots at their peaks.

    A summary names a snapshot's largest lines only. Where a line is named in one and not in the other, it holds at most
    as much there as the least that is named; it is compared as if it held nothing, and left out unless it is larger.
    """
    return SnapshotComparison(
        before=before.source,
        after=after.source,
        before_bytes=before.peak.allocated_bytes,
        after_bytes=after.peak.allocated_bytes,
        before_categories=_by_category(before.peak),
        after_categories=_by_category(after.peak),
        lines=_differences(before.peak, after.peak),
    )


def _by_category(composition: Composition) -> tuple[int, ...]:
    sizes = {part.category: part.allocated_bytes for part in composition.categories}
    return tuple(sizes.get(category, 0) for category in Category)


def _differences(before: Composition, after: Composition) -> tuple[DifferingLine, ...]:
    old, new = _by_line(before), _by_line(after)
    unnamed_old, unnamed_new = _most_unnamed(before), _most_unnamed(after)
    found = []
    for place in {**old, **new}:
        line = DifferingLine(place, old.get(place, 0), new.get(place, 0))
        certain = (place in old or line.after_bytes > unnamed_old) and (place in new or line.before_bytes > unnamed_new)
        if certain and line.before_bytes != line.after_bytes:
            found.append(line)
    found.sort(key=lambda line: -abs(line.after_bytes - line.before_bytes))
    return tuple(found[:_MOST_DIFFERENCES])


def _by_line(composition: Composition) -> dict[SourceLine | None, int]:
    return {line.place: line.allocated_bytes for line in composition.lines}


def _most_unnamed(composition: Composition) -> int:
    """Return the most bytes that a line that is not named can hold."""
    return composition.lines[-1].allocated_bytes if len(composition.lines) == MOST_LINES else 0


_MOST_POINTS: Final = 400


def timeline(history: History, blocks: Sequence[LabelledBlock]) -> tuple[TimelinePoint, ...]:
    """At most 400 points: of each stretch of the history its highest, and always the first, the peak and the last."""
    if not history.count:
        return ()
    chosen = _chosen(history.allocated)
    at = dict(zip(chosen, _categories(history, blocks, chosen), strict=True))
    times = [event.microseconds for event in history.device.events]
    begun = next((time for time in times if time is not None), 0)
    return tuple(
        TimelinePoint(
            event=moment - 1,
            microseconds=None if (now := times[moment - 1]) is None else max(0, now - begun),
            reserved_bytes=history.reserved[moment],
            categories=at[moment],
        )
        for moment in chosen
    )


def _chosen(allocated: Sequence[int]) -> list[int]:
    """Numbers of events until the points, in order."""
    count = len(allocated) - 1
    moments = range(1, count + 1)
    if count <= _MOST_POINTS:
        return list(moments)
    # Three points are chosen in any case, and so is the highest of each of the step_borders between these borders.
    step_borders = _MOST_POINTS - 3
    borders = [1 + count * number // step_borders for number in range(step_borders + 1)]
    highest = {max(range(begin, end), key=allocated.__getitem__) for begin, end in pairwise(borders)}
    return sorted(highest | {1, max(moments, key=allocated.__getitem__), count})


def _categories(history: History, blocks: Sequence[LabelledBlock], chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Bytes by category after each of some numbers of events."""
    changes: list[tuple[int, int, int]] = []
    order = {category: number for number, category in enumerate(Category)}
    for block in blocks:
        lifetime, number = block.lifetime, order[block.category]
        if lifetime.born < history.count:
            changes.append((max(OLDER, lifetime.born), number, lifetime.size))
            changes.append((lifetime.died, number, -lifetime.size))
    changes.sort()
    totals = Counter(dict.fromkeys(range(len(order)), 0))
    at = 0
    for moment in chosen:
        while at < len(changes) and changes[at][0] < moment:
            totals[changes[at][1]] += changes[at][2]
            at += 1
        yield tuple(totals[number] for number in range(len(order)))


_FEWEST_STEPS: Final = 3
_MOST_LINES: Final = 10
_LATELY_SHARE: Final = 4  # the last quarter of the history, or the last steps
_LATEST_STEPS: Final = 4
_LEAST_SHARE: Final = 32  # of what is held from the driver; less cannot be why it ran out
_LAUNCHERS: Final = re.compile(
    r"[/\\]torch[/\\](?:multiprocessing|distributed[/\\](?:run|launch\w*|elastic|launcher)|utils[/\\]_contextlib|amp)\b"
)


def growing_lines(
    history: History, blocks: Sequence[LabelledBlock], stacks: Sequence[Stack], facts: Sequence[StackFacts]
) -> tuple[GrowingLine, ...]:
    """Lines whose memory grew, worst first.

    Args:
        history: The device's history.
        blocks: Its lifetimes with their categories and lines.
        stacks: The snapshot's stacks.
        facts: What is known of each of them.
    """
    borders = step_borders(history, stacks, facts)
    if len(borders) < _FEWEST_STEPS:
        return ()
    grown = _Growth(history, borders)
    for block in blocks:
        grown.take(block)
    return grown.lines()


def step_borders(history: History, stacks: Sequence[Stack], facts: Sequence[StackFacts]) -> list[int]:
    """Events at which a loop of the program starts over or a backward pass has ended, in order."""
    outer = [_outside_of_torch(stack) for stack in stacks]
    borders = []
    before: int | None = None
    backward = False
    for index, event in enumerate(history.device.events[: history.moment]):
        if event.action is not AllocatorAction.ALLOC:
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
        if is_torch(frame.path) and not _LAUNCHERS.search(frame.path):
            break
        found.append(frame)
    return tuple(found)


def _starts_over(before: Stack, now: Stack) -> bool:
    """Return whether the first frames that differ are of one function, and the later stack is further up in it."""
    for old, new in zip(before, now, strict=False):
        if old != new:
            return old.path == new.path and old.function == new.function and new.line < old.line
    return False


class _Growth:
    """Bytes that each stack allocated and retained, step by step."""

    def __init__(self, history: History, borders: Sequence[int]) -> None:
        self.history = history
        self.borders = borders
        self.allocated_in: defaultdict[int, set[int]] = defaultdict(set)
        self.retained: defaultdict[int, list[LabelledBlock]] = defaultdict(list)

    def take(self, block: LabelledBlock) -> None:
        """Take a block into account."""
        lifetime = block.lifetime
        if OLDER < lifetime.born < self.history.moment and block.category is not Category.WORKSPACE:
            self.allocated_in[lifetime.stack].add(self._step_of(lifetime.born))
        if self.history.is_live_at_moment(lifetime):
            self.retained[lifetime.stack].append(block)

    def lines(self) -> tuple[GrowingLine, ...]:
        """Lines of the stacks that grew, together."""
        by_line: defaultdict[SourceLine | None, list[LabelledBlock]] = defaultdict(list)
        for stack, blocks in self.retained.items():
            if self._grew(stack, blocks):
                by_line[blocks[-1].place] += blocks
        lines = [self._line(place, blocks) for place, blocks in by_line.items()]
        grown = sum(line.last_bytes - line.first_bytes for line in lines)
        if grown * _LEAST_SHARE < self.history.reserved[self.history.moment]:
            return ()
        lines.sort(key=lambda line: line.first_bytes - line.last_bytes)
        return tuple(lines[:_MOST_LINES])

    def _step_of(self, event: int) -> int:
        return bisect_right(self.borders, event)

    def _grew(self, stack: int, blocks: Sequence[LabelledBlock]) -> bool:
        from_steps = {self._step_of(block.lifetime.born) for block in blocks if block.lifetime.born > OLDER}
        if len(from_steps) < _FEWEST_STEPS or 2 * len(from_steps) < len(self.allocated_in[stack]):
            return False
        last = max(block.lifetime.born for block in blocks)
        lately = self.history.moment - self.history.moment // _LATELY_SHARE
        return last >= lately or self._step_of(last) >= len(self.borders) - _LATEST_STEPS

    def _line(self, place: SourceLine | None, blocks: Sequence[LabelledBlock]) -> GrowingLine:
        first = min(self._step_of(block.lifetime.born) for block in blocks if block.lifetime.born > OLDER)
        early = [block for block in blocks if self._step_of(block.lifetime.born) <= first]
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
