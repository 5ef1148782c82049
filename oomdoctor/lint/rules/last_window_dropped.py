"""OOM204: what follows the last whole window of an epoch gets no step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import accumulations
from oomdoctor.lint.patterns.windows import handles_leftovers, iterable_of, leftover_outcome
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.patterns.accumulation import Accumulation
    from oomdoctor.lint.rule import Subject


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            if found.step_offset == 0 and not handles_leftovers(found):
                yield from _judged(found)


def _judged(found: Accumulation) -> Iterator[Hit]:
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


def _help(found: Accumulation, batches: str) -> str:
    counter, count = found.loop.counter, found.count
    if counter is None or count is None or count.by_hand or count.first is None:
        return "make a step after the loop for the rest, or on the last batch"
    number = counter if count.first == 1 else f"{counter} + {1 - count.first}"
    return f"step on the last batch too: `or {number} == len({batches})`"


_BAD: Final = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulation_steps, epochs):
    for epoch in range(epochs):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x.cuda()), y.cuda())
            (loss / accumulation_steps).backward()
            if (step + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
_GOOD: Final = _BAD.replace("accumulation_steps == 0:", "accumulation_steps == 0 or step + 1 == len(loader):")

RULE: Final = Rule(
    code="OOM204",
    name="last-window-dropped",
    severity=Severity.WARNING,
    concern=Concern.CORRECTNESS,
    summary="the last, partial window of an epoch gets no step, or is mixed with the next epoch's first",
    explanation="""\
Looks for accumulation over a loader whose counter begins anew in each epoch, with a step after each whole window and
nowhere else. The rest of an epoch is then lost where gradients are zeroed before the next one, or added to the next
epoch's first window, which becomes too large.

Passes over a step after the loop or on the last batch, counters that run on over the epochs, loops over a number of
steps or an endless loader, loops that stop early by their counter, and code that checks the remainder of
`len(loader)`.""",
    reason="""\
Up to `k - 1` micro-batches of every epoch never move the weights, or count in the wrong place. With few batches and
many accumulation steps that is a good part of the data: 63 batches at `k = 8` leave 7.""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://github.com/ultralytics/ultralytics/pull/11217",
        "https://github.com/pytorch/torchtune/issues/2745",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/19987",
    ),
    words=("backward",),
    check=_check,
)
