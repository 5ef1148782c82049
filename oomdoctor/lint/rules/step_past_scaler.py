"""OOM214: the optimizer steps by itself with gradients that a scaler has scaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import exclude
from oomdoctor.lint.patterns.windows import is_scaled, optimizer_of, scaler_of, scales_by_hand, takes_closure
from oomdoctor.lint.rule import Hit, Subject, read_rule


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for place, event in enumerate(run.events):
            if (
                event.action is Action.STEP
                and event.value.kind is Kind.OPTIMIZER
                and event.context.managed is None
                and scaler_of(event) is None
                and not takes_closure(event)
                and not scales_by_hand(run, event)
            ):
                scaled = _scaled_pass(run, place, event)
                if scaled is not None:
                    yield _hit(run, place, event, scaled)


def _scaled_pass(run: Run, place: int, step: Event) -> Event | None:
    """The pass whose gradients it uses, where all passes that it may use are of scaled losses."""
    passes = [event for event in run.of(Action.BACKWARD) if _may_meet(event, step)]
    if not passes or not all(is_scaled(event) for event in passes):
        return None
    if any(_may_meet(event, step) for event in run.of(Action.UNSCALE)):
        return None
    return next((event for event in reversed(run.events[:place]) if event in passes), None)


def _may_meet(event: Event, step: Event) -> bool:
    """Return whether both events may happen in one iteration of the loop around the step."""
    loops = step.context.loops
    return event.context.loops[: len(loops)] == loops and not exclude(event, step)


def _hit(run: Run, place: int, step: Event, scaled: Event) -> Hit:
    optimizer, scaler = optimizer_of(step), text_of(scaled.value.node.func.value)  # type: ignore[union-attr]
    earlier = (event for event in run.events[:place] if event.action is Action.STEP and _may_meet(event, step))
    if any(scaler_of(event) is not None and optimizer_of(event) == optimizer for event in earlier):
        message = f"`{optimizer}` steps a second time with the gradients that `{scaler}.step` has used"
        return Hit.at(step, message, help=f"leave it out: `{scaler}.step({optimizer})` has made the step")
    message = f"`{optimizer}` steps with gradients that `{scaler}` has scaled up"
    return Hit.at(step, message, help=f"call `{scaler}.step({optimizer})`, then `{scaler}.update()`")


RULE: Final = read_rule(__file__, _check)
