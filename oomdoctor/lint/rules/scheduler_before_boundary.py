"""OOM206: the learning rate schedule goes on in every micro-step."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.patterns.accumulation import accumulations, owner_text
from oomdoctor.lint.patterns.counters import counts_micro_batches
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.patterns.accumulation import Accumulation
    from oomdoctor.lint.rule import Subject


def _check(looked_at: Subject) -> Iterator[Hit]:
    for run in looked_at.runs:
        for found in accumulations(run):
            for event in run.of(Action.SCHEDULE, within=found.loop):
                if _is_early(event, found) and not counts_micro_batches(event, found.period):
                    yield _hit(event, found)


def _is_early(event: Event, found: Accumulation) -> bool:
    call = event.call
    is_plain = call is not None and not call.args and not call.keywords  # `step(epoch + i / n)` says where it is
    return is_plain and found.steps_alone and found.is_in_each_micro_step(event)


def _hit(event: Event, found: Accumulation) -> Hit:
    is_made_here = isinstance(event.value.node, ast.Call)
    return Hit.at(
        event,
        f"`{owner_text(event)}.step()` runs in every micro-step, "
        f"but `{owner_text(found.step)}` makes a step only every "
        f"`{found.period}`: the schedule ends `{found.period}` times too early",
        help="step the schedule right after the optimizer's step",
        severity=None if is_made_here else Severity.NOTE,
    )


_BAD: Final = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)


def train(loader, accumulation_steps):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        (loss / accumulation_steps).backward()
        if (step + 1) % accumulation_steps == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""
_GOOD: Final = _BAD.replace("        scheduler.step()\n", "            scheduler.step()\n")

RULE: Final = Rule(
    code="OOM206",
    name="scheduler-before-boundary",
    severity=Severity.WARNING,
    concern=Concern.CORRECTNESS,
    summary="the learning rate schedule steps in every micro-step instead of with the optimizer",
    explanation="""\
Looks for `scheduler.step()` in each iteration of an accumulation while the optimizer's step waits for the whole
window. It is a note where the schedule is made elsewhere, so that the unit of its length is not known.

Passes over a schedule whose length is made of `len(loader)` without the accumulation steps, since that counts
micro-batches too; over `step(position)`; over steps once an epoch; and over frameworks that make the schedule wait
(Accelerate under `accumulate`, DeepSpeed).""",
    reason="""\
Schedules are written in optimizer steps: a warm-up of 16,000 steps becomes one of 1,000 with 16 accumulation steps, and
the learning rate reaches its end after a fraction of the training.""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/1476",
        "https://github.com/huggingface/accelerate/issues/963",
        "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
    ),
    words=(".step(",),
    check=_check,
)
