"""OOM204: what follows the last whole window of an epoch gets no step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.patterns.windows import handles_leftovers, iterable_of, leftover_outcome
from oomdoctor.lint.rule import Hit, Subject, read_rule


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            if found.step_offset == 0 and not handles_leftovers(found):
                yield from _judged(found)


def _judged(found: AccumulationLoop) -> Iterator[Hit]:
    what_happens = leftover_outcome(found)
    if what_happens is None or found.guard is None or found.owner is None:
        return
    batches = text_of(iterable_of(found.loop))
    yield Hit(
        found.guard.test,
        found.owner,
        f"where `{found.period}` does not divide `len({batches})`, the last micro-batches {what_happens[0]}",
        _help(found, batches),
        what_happens[1],
    )


def _help(found: AccumulationLoop, batches: str) -> str:
    counter, count = found.loop.counter, found.count
    if counter is None or count is None or count.by_hand or count.first is None:
        return "make a step after the loop for the rest, or on the last batch"
    number = counter if count.first == 1 else f"{counter} + {1 - count.first}"
    return f"step on the last batch too: `or {number} == len({batches})`"


RULE: Final = read_rule(__file__, _check)
