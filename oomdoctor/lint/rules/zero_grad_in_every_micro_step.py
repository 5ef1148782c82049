"""OOM201: gradients are zeroed in every micro-step, so that nothing accumulates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.patterns.accumulation import accumulations, owner_text
from oomdoctor.lint.patterns.windows import handles_gradients
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.patterns.accumulation import Accumulation
    from oomdoctor.lint.rule import Subject


def _check(looked_at: Subject) -> Iterator[Hit]:
    for run in looked_at.runs:
        for found in accumulations(run):
            hits = list(_judged(found))
            if hits and not handles_gradients(run.module):
                yield from hits


def _judged(found: Accumulation) -> Iterator[Hit]:
    for event in found.run.of(Action.ZERO_GRAD, within=found.loop):
        if event.name == ".zero_grad" and found.is_same_optimizer(event) and found.is_in_each_micro_step(event):
            yield Hit.at(
                event,
                f"`{owner_text(event)}.zero_grad()` runs in every micro-step, "
                f"but `{owner_text(found.step)}` steps only "
                f"every `{found.period}`: the gradients of all but the last micro-batch are thrown away",
                help=f"zero the gradients right after the step of `{owner_text(found.step)}`",
            )


_BAD: Final = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulation_steps):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda()) / accumulation_steps
        loss.backward()
        if (step + 1) % accumulation_steps == 0 or step + 1 == len(loader):
            optimizer.step()
"""
_GOOD: Final = _BAD.replace("        optimizer.zero_grad()\n", "", 1).replace(
    "optimizer.step()\n", "optimizer.step()\n            optimizer.zero_grad()\n"
)

RULE: Final = Rule(
    code="OOM201",
    name="zero-grad-in-every-micro-step",
    severity=Severity.ERROR,
    concern=Concern.CORRECTNESS,
    summary="gradients are zeroed in every micro-step, so nothing accumulates",
    explanation="""\
Looks for a loop in which the optimizer makes a step once in several micro-batches, while `zero_grad()` runs in each
of them: at the top of the loop, or below the `if` of the step instead of in it. The step may also come after an inner
loop over micro-steps.

Passes over `zero_grad()` under a condition of its own, other optimizers, code that handles `.grad` itself, and
frameworks that make `zero_grad()` wait for the step (Accelerate under `accumulate`, DeepSpeed).""",
    reason="""\
`backward()` adds to `.grad`, and that is all there is to gradient accumulation. Zeroed in between, the step sees one
micro-batch alone: most of the work is lost, and the effective batch is as small as before.""",
    bad=_BAD,
    good=_GOOD,
    references=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
    words=("zero_grad",),
    check=_check,
)
