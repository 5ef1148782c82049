"""Find the holes: free memory that cannot be given back, because something lives in the same segment."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from oomdoctor.results import Fragmentation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.diagnosis.snapshot.history import History
    from oomdoctor.diagnosis.snapshot.packing import Span


def fragmentation(history: History) -> Fragmentation:
    """Holes at the moment that counts.

    Of an expandable segment each stretch that is mapped counts as a segment of its own.
    """
    used = [lifetime for lifetime in history.lifetimes if history.is_in_use_at_moment(lifetime)]
    blocks = sorted((lifetime.address, lifetime.address + lifetime.size) for lifetime in used)
    with_holes = hole_bytes = largest = cached = 0
    for span in history.spans:
        inside = _inside(blocks, span)
        holes = list(_holes(span, inside))
        if not inside:
            cached += span[1] - span[0]
        elif holes:
            with_holes += 1
            hole_bytes += sum(holes)
            largest = max(largest, *holes)
    return Fragmentation(len(history.spans), with_holes, hole_bytes, largest, cached)


def _inside(blocks: Sequence[Span], span: Span) -> Sequence[Span]:
    return blocks[bisect_left(blocks, (span[0], 0)) : bisect_left(blocks, (span[1], 0))]


def _holes(span: Span, blocks: Sequence[Span]) -> Iterator[int]:
    """Sizes of what lies between some blocks in a segment."""
    at = span[0]
    for begin, end in blocks:
        if begin > at:
            yield begin - at
        at = max(at, end)
    if at < span[1]:
        yield span[1] - at
