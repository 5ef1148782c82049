"""OOM203: windows of micro-batches end one too early or one too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import accumulations
from oomdoctor.lint.patterns.edits import shifted_boundary
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Guard
    from oomdoctor.lint.module import Module
    from oomdoctor.lint.patterns.accumulation import Accumulation
    from oomdoctor.lint.patterns.boundary import Boundary
    from oomdoctor.lint.rule import Subject


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            guard, boundary, owner = found.guard, found.boundary, found.owner
            if guard is not None and boundary is not None and owner is not None and found.step_offset in (-1, 1):
                yield _hit(found, guard, boundary, owner)


def _hit(found: Accumulation, guard: Guard, boundary: Boundary, owner: Module) -> Hit:
    first = _first_window(found, boundary)
    return Hit(
        guard.test,
        owner,
        f"`{text_of(guard.test)}` makes the first step after {first} instead of `{found.period}`: "
        f"`{boundary.counter}` is one {'too low' if found.step_offset == -1 else 'too high'} there",
        _help(found, boundary),
        edits=shifted_boundary(found),
    )


def _first_window(found: Accumulation, boundary: Boundary) -> str:
    """Return the number of micro-batches of the first step, in words."""
    if found.step_offset == 1:
        return f"`{found.period} - 1` micro-batches"
    waits = boundary.reaches or (boundary.least is not None and boundary.least > 0)
    return f"`{found.period} + 1` micro-batches" if waits else "one micro-batch"


def _help(found: Accumulation, boundary: Boundary) -> str:
    more = "" if boundary.includes_last else ", and step on the last batch too"
    if boundary.reaches:
        return f"count before the test: `{boundary.counter}` should be the number of micro-batches since the last step"
    if found.count is None or found.count.first is None:
        return "count from one"
    ahead = 1 - found.count.first
    counted = boundary.counter if ahead == 0 else f"({boundary.counter} {'+' if ahead > 0 else '-'} {abs(ahead)})"
    return f"`{counted} % {found.period} == 0` holds after each `{found.period}` micro-batches{more}"


_BAD: Final = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulation_steps):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        (loss / accumulation_steps).backward()
        if step % accumulation_steps == 0 or step == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
"""
_GOOD: Final = _BAD.replace("if step % accumulation_steps", "if (step + 1) % accumulation_steps")

RULE: Final = Rule(
    code="OOM203",
    name="boundary-off-by-one",
    severity=Severity.WARNING,
    concern=Concern.CORRECTNESS,
    summary="the accumulation boundary is off by one",
    explanation="""\
Looks for a step whose condition first holds one micro-batch too early or too late, given the counter's first value
and whether the condition is tested before or after the backward pass: `step % k == 0` with `enumerate` from 0, `(step
+ 1) % k == 0` with `enumerate(..., 1)` or after `step += 1`. Names, helper methods, inverted conditions and counters
kept by hand are understood.

Passes over counters whose first value is not known, steps at the beginning of the next window, conditions that are
about another model (`if i % n_critic == 0` with a backward pass of its own) and everything that only logs or saves.
`--fix` rewrites the counted side where the loop itself counts.""",
    reason="""\
With `step % k == 0` from 0 the first step is made of one micro-batch, at `1 / k` of its weight, and the last `k - 1`
of an epoch make no step. With `k = 1` nothing shows, which is why the mistake survives in examples.""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://github.com/huggingface/accelerate/tree/main/examples/by_feature",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    ),
    words=("backward",),
    check=_check,
    fixed=_GOOD,
)
