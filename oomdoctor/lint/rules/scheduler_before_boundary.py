"""OOM206: the learning rate schedule goes on in every micro-step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations, owner_text
from oomdoctor.lint.patterns.counters import counts_micro_batches
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.results import Severity


def _check(looked_at: Subject) -> Iterator[Hit]:
    for run in looked_at.runs:
        for found in accumulations(run):
            for event in run.of(Action.SCHEDULE, within=found.loop):
                if _is_early(event, found) and not counts_micro_batches(event, found.period):
                    is_made_here = isinstance(event.value.node, ast.Call)
                    yield Hit.at(
                        event,
                        f"`{owner_text(event)}.step()` runs in every micro-step, "
                        f"but `{owner_text(found.step)}` makes a step only every "
                        f"`{found.period}`: the schedule ends `{found.period}` times too early",
                        help="step the schedule right after the optimizer's step",
                        severity=None if is_made_here else Severity.NOTE,
                    )


def _is_early(event: Event, found: AccumulationLoop) -> bool:
    call = event.call
    is_plain = call is not None and not call.args and not call.keywords  # `step(epoch + i / n)` says where it is
    return is_plain and found.steps_alone and found.is_in_each_micro_step(event)


RULE: Final = read_rule(__file__, _check)
