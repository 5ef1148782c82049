"""Which of a file's fixes can be made at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.lint.rule import Edit

Position: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[Position, Position]


def together(fixes: Sequence[tuple[Edit, ...]]) -> list[tuple[Edit, ...]]:
    """Fixes that leave each other alone, the first by position first.

    A fix is made whole or not at all. One that overlaps an earlier one, or only touches it, is left for the next pass:
    what it was to do may look different by then. One whose own edits overlap is never made.

    Args:
        fixes: The edits of each finding.
    """
    taken: list[Span] = []
    chosen = []
    for fix in sorted(filter(None, fixes), key=_first):
        spans = sorted({(edit.start, edit.end) for edit in fix})
        if len(spans) == len(set(fix)) and _are_apart(spans) and all(_is_free(span, taken) for span in spans):
            chosen.append(fix)
            for span in spans:
                insort(taken, span)
    return chosen


def _first(fix: tuple[Edit, ...]) -> Position:
    return min(edit.start for edit in fix)


def _are_apart(spans: Sequence[Span]) -> bool:
    is_ordered = all(start <= end for start, end in spans)
    return is_ordered and all(before[1] <= after[0] for before, after in pairwise(spans))


def _is_free(span: Span, taken: Sequence[Span]) -> bool:
    """Whether nothing taken overlaps or touches a span; `taken` is in order and free of overlaps."""
    index = bisect_left(taken, span)
    is_free_before = index == 0 or taken[index - 1][1] < span[0]
    return is_free_before and (index == len(taken) or span[1] < taken[index][0])
