"""OOM205: gradients are clipped before the window is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.rule import Hit, Subject, read_rule

_BOUNDLESS: Final = re.compile(r"""\binf\b|["']inf|1e\+?\d{2,}|10{5,}""")


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            for event in run.of(Action.CLIP, within=found.loop):
                if found.steps_alone and not _only_measures(event) and found.is_in_each_micro_step(event):
                    yield _hit(event, found)


def _only_measures(event: Event) -> bool:
    """Return whether the bound is infinite: the call is made for the norm that it returns."""
    return event.call is not None and _BOUNDLESS.search(text_of(event.call)) is not None


def _hit(event: Event, found: AccumulationLoop) -> Hit:
    name = event.name.rpartition(".")[2]
    return Hit.at(
        event,
        f"`{name}` clips in every micro-step, but the gradients are complete only every `{found.period}`: "
        "each call clips a partial sum",
        help="clip once, right before the step" if found.guard is None else "clip right before the step",
    )


RULE: Final = read_rule(__file__, _check)
