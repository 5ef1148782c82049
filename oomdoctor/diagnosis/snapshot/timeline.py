"""Memory over the history, thinned to what a diagram can show."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.lifetimes import OLDER
from oomdoctor.results import Category, TimelinePoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.diagnosis.snapshot.history import History
    from oomdoctor.diagnosis.snapshot.labelled import Labelled

_MOST_POINTS: Final = 400


def timeline(history: History, blocks: Sequence[Labelled]) -> tuple[TimelinePoint, ...]:
    """At most 400 points: of each stretch of the history its highest, and always the first, the peak and the last."""
    if not history.count:
        return ()
    chosen = _chosen(history.allocated)
    at = dict(zip(chosen, _categories(history, blocks, chosen), strict=True))
    begun = _first_time(history)
    return tuple(
        TimelinePoint(
            event=moment - 1,
            microseconds=_since(begun, history.device.events[moment - 1].microseconds),
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
    # Three points are chosen in any case, and so is the highest of each of the stretches between these borders.
    stretches = _MOST_POINTS - 3
    borders = [1 + count * number // stretches for number in range(stretches + 1)]
    highest = {max(range(begin, end), key=allocated.__getitem__) for begin, end in pairwise(borders)}
    return sorted(highest | {1, max(moments, key=allocated.__getitem__), count})


def _categories(history: History, blocks: Sequence[Labelled], chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
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


def _first_time(history: History) -> int | None:
    return next((event.microseconds for event in history.device.events if event.microseconds is not None), None)


def _since(begun: int | None, now: int | None) -> int | None:
    return None if begun is None or now is None else max(0, now - begun)
