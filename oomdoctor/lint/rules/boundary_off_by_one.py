"""OOM203: windows of micro-batches end one too early or one too late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.patterns.boundary import Boundary
from oomdoctor.lint.patterns.edits import shifted_boundary
from oomdoctor.lint.rule import Hit, Subject, read_rule


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            guard, boundary, owner = found.guard, found.boundary, found.owner
            if guard is not None and boundary is not None and owner is not None and found.step_offset in (-1, 1):
                first = _first_window(found, boundary)
                yield Hit(
                    guard.test,
                    owner,
                    f"`{text_of(guard.test)}` makes the first step after {first} instead of `{found.period}`: "
                    f"`{boundary.counter}` is one {'too low' if found.step_offset == -1 else 'too high'} there",
                    _help(found, boundary),
                    edits=shifted_boundary(found),
                )


def _first_window(found: AccumulationLoop, boundary: Boundary) -> str:
    """Return the number of micro-batches of the first step, in words."""
    if found.step_offset == 1:
        return f"`{found.period} - 1` micro-batches"
    waits = boundary.reaches or (boundary.least is not None and boundary.least > 0)
    return f"`{found.period} + 1` micro-batches" if waits else "one micro-batch"


def _help(found: AccumulationLoop, boundary: Boundary) -> str:
    more = "" if boundary.includes_last else ", and step on the last batch too"
    if boundary.reaches:
        return f"count before the test: `{boundary.counter}` should be the number of micro-batches since the last step"
    if found.count is None or found.count.first is None:
        return "count from one"
    ahead = 1 - found.count.first
    counted = boundary.counter if ahead == 0 else f"({boundary.counter} {'+' if ahead > 0 else '-'} {abs(ahead)})"
    return f"`{counted} % {found.period} == 0` holds after each `{found.period}` micro-batches{more}"


RULE: Final = read_rule(__file__, _check)
