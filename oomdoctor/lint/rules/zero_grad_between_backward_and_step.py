"""OOM211: gradients are set to zero after the backward pass that made them, and before the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import calls_between, conditions, exclude, in_same_call, sets_gradients_between
from oomdoctor.lint.patterns.windows import optimizer_of, takes_closure
from oomdoctor.lint.rule import Hit, Subject, read_rule

_PASSES: Final = (Action.BACKWARD, Action.AUTOGRAD)
_MANAGED: Final = (None, "accelerate")


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for place, event in enumerate(run.events):
            if event.action is Action.ZERO_GRAD and event.context.managed in _MANAGED and not event.context.handlers:
                step = _step_after(run, place, event)
                if step is not None and _has_pass_before(run, place, event, step):
                    message = f"`{_owner(event)}.zero_grad()` throws away the gradients that the next step should use"
                    yield Hit.at(event, message, help=f"move it after the step of `{optimizer_of(step)}`")


def _step_after(run: Run, place: int, zero: Event) -> Event | None:
    """The step that finds no gradients: the same optimizer's, with nothing between that could make new ones."""
    for event in run.events[place + 1 :]:
        if event.action in _PASSES:
            return None
        if event.action is Action.STEP and _is_of(event, zero, run):
            return event if _directly(zero, event, run) else None
    return None


def _directly(zero: Event, step: Event, run: Run) -> bool:
    if not in_same_call(zero, step) or zero.context.loops != step.context.loops or takes_closure(step):
        return False
    if not conditions(zero.context.guards).items() <= conditions(step.context.guards).items():
        return False
    return not sets_gradients_between(zero, step) and not any(calls_between(zero, step, run))


def _is_of(step: Event, zero: Event, run: Run) -> bool:
    """Return whether a step is of the optimizer, or the model, whose gradients were set to zero."""
    if zero.value.kind is Kind.MODEL:
        models = {event.value.identity for event in run.of(Action.FORWARD)}
        return len(models) == 1 and len({optimizer_of(event) for event in run.of(Action.STEP)}) == 1
    return _owner(zero) == optimizer_of(step)


def _has_pass_before(run: Run, place: int, zero: Event, step: Event) -> bool:
    """Return whether the gradients' last change was a backward pass, in the same iteration."""
    for event in reversed(run.events[:place]):
        if event.action in (Action.STEP, Action.ZERO_GRAD) and _may_be_same(event, step) and not exclude(event, zero):
            return False
        if event.action is Action.BACKWARD and not exclude(event, zero):
            return event.context.loops[: len(zero.context.loops)] == zero.context.loops
    return False


def _may_be_same(event: Event, step: Event) -> bool:
    owner = optimizer_of(event) if event.action is Action.STEP else _owner(event)
    return event.value.kind is Kind.MODEL or owner == optimizer_of(step)


def _owner(zero: Event) -> str:
    return "" if zero.call is None else text_of(zero.call.func).rpartition(".")[0]


RULE: Final = read_rule(__file__, _check)
