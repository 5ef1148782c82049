"""OOM205: gradients are clipped before the window is complete."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import accumulations
from oomdoctor.lint.rule import Hit, Rule
from oomdoctor.results import Concern, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.patterns.accumulation import Accumulation
    from oomdoctor.lint.rule import Subject


_BOUNDLESS: Final = re.compile(r"""\binf\b|["']inf|1e\+?\d{2,}|10{5,}""")


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            for event in run.of(Action.CLIP, within=found.loop):
                if _is_early(event, found):
                    yield _hit(event, found)


def _is_early(event: Event, found: Accumulation) -> bool:
    return found.steps_alone and not _only_measures(event) and found.is_in_each_micro_step(event)


def _only_measures(event: Event) -> bool:
    """Return whether the bound is infinite: the call is made for the norm that it returns."""
    return event.call is not None and _BOUNDLESS.search(text_of(event.call)) is not None


def _hit(event: Event, found: Accumulation) -> Hit:
    name = event.name.rpartition(".")[2]
    return Hit.at(
        event,
        f"`{name}` clips in every micro-step, but the gradients are complete only every `{found.period}`: "
        "each call clips a partial sum",
        help="clip once, right before the step" if found.guard is None else "clip right before the step",
    )


_BAD: Final = """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(512, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, accumulation_steps):
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        (loss / accumulation_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (step + 1) % accumulation_steps == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
_CLIP: Final = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
_GOOD: Final = _BAD.replace(_CLIP, "").replace(
    "            optimizer.step()\n", f"    {_CLIP}            optimizer.step()\n"
)

RULE: Final = Rule(
    code="OOM205",
    name="clip-before-boundary",
    severity=Severity.WARNING,
    concern=Concern.CORRECTNESS,
    summary="gradients are clipped in every micro-step instead of once before the step",
    explanation="""\
Looks for clipping of gradients, by norm or by value, that runs after each backward pass of an accumulation while the
step waits for the whole window.

Passes over clipping with an infinite bound, which only measures, over loops in which several optimizers make steps,
over clipping under a condition of its own, and over frameworks that clip at the right time themselves.""",
    reason="""\
Clipping a partial sum scales down the gradients so far, but not those that the next micro-batches add. The earlier
micro-batches count less, and the norm of the gradients in the step may exceed the bound.""",
    bad=_BAD,
    good=_GOOD,
    references=(
        "https://github.com/huggingface/transformers/issues/1563",
        "https://github.com/huggingface/diffusers/issues/721",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
    ),
    words=("clip_grad",),
    check=_check,
)
