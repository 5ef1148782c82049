"""OOM201: gradients are zeroed in every micro-step, so that nothing accumulates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations, owner_text
from oomdoctor.lint.patterns.windows import handles_gradients
from oomdoctor.lint.rule import Hit, Subject, read_rule


def _check(looked_at: Subject) -> Iterator[Hit]:
    for run in looked_at.runs:
        for found in accumulations(run):
            hits = list(_judged(found))
            if hits and not handles_gradients(run.module):
                yield from hits


def _judged(found: AccumulationLoop) -> Iterator[Hit]:
    for event in found.run.of(Action.ZERO_GRAD, within=found.loop):
        if event.name == ".zero_grad" and found.is_same_optimizer(event) and found.is_in_each_micro_step(event):
            yield Hit.at(
                event,
                f"`{owner_text(event)}.zero_grad()` runs in every micro-step, "
                f"but `{owner_text(found.step)}` steps only "
                f"every `{found.period}`: the gradients of all but the last micro-batch are thrown away",
                help=f"zero the gradients right after the step of `{owner_text(found.step)}`",
            )


RULE: Final = read_rule(__file__, _check)
