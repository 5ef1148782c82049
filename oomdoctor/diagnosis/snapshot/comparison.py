"""Two snapshots side by side: what grew, what shrank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.snapshot.composition import MOST_LINES
from oomdoctor.results import Category, DifferingLine, SnapshotComparison

if TYPE_CHECKING:
    from oomdoctor.results import Composition, SnapshotSummary, SourceLine

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
    """What a line that is not named holds at most."""
    return composition.lines[-1].allocated_bytes if len(composition.lines) == MOST_LINES else 0
