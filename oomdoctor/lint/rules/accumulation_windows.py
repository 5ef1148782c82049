"""Rules on accumulation windows: what is done in each micro-step, and where a window ends (OOM201 to OOM206)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations, owner_text
from oomdoctor.lint.patterns.boundary import Boundary
from oomdoctor.lint.patterns.counters import counts_micro_batches
from oomdoctor.lint.patterns.edits import shifted_boundary
from oomdoctor.lint.patterns.windows import (
    handles_gradients,
    handles_leftovers,
    iterable_of,
    leftover_outcome,
    may_be_divided,
    may_divide,
)
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.results import Severity


def zero_grad_in_every_micro_step(looked_at: Subject) -> Iterator[Hit]:
    """OOM201: gradients are zeroed in every micro-step, so that nothing accumulates."""
    for run in looked_at.runs:
        for found in accumulations(run):
            hits = list(_zeroed_early(found))
            if hits and not handles_gradients(run.module):
                yield from hits


def _zeroed_early(found: AccumulationLoop) -> Iterator[Hit]:
    for event in found.run.of(Action.ZERO_GRAD, within=found.loop):
        if event.name == ".zero_grad" and found.is_same_optimizer(event) and found.is_in_each_micro_step(event):
            yield Hit.at(
                event,
                f"`{owner_text(event)}.zero_grad()` runs in every micro-step, "
                f"but `{owner_text(found.step)}` steps only "
                f"every `{found.period}`: the gradients of all but the last micro-batch are thrown away",
                help=f"zero the gradients right after the step of `{owner_text(found.step)}`",
            )


_SCALE_FREE: Final = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "AdamW8bit", "Adam8bit", "FusedAdam")

_MOST_PASSES: Final = 16
"""Backward passes of one loop that are looked at: enough for any loop that people write."""


def loss_not_divided(subject: Subject) -> Iterator[Hit]:
    """OOM202: the losses of a window add up, and are not divided by how many there are."""
    for run in subject.runs:
        for found in accumulations(run):
            undivided = [event for event in found.backwards[:_MOST_PASSES] if not may_be_divided(event, found)]
            if undivided and not may_divide(found):
                yield from (_undivided(event, found) for event in undivided)


def _undivided(event: Event, found: AccumulationLoop) -> Hit:
    loss = _loss_name(event)
    told = f"{loss} is not divided by `{found.period}`, so each step follows the sum of that many gradients"
    library = (found.step.value.library or "").rpartition(".")[2]
    cancels_scale = library in _SCALE_FREE and next(found.run.of(Action.CLIP), None) is None
    return Hit.at(
        event,
        told + (" (Adam cancels a constant scale, except for its `eps`)" if cancels_scale else ""),
        help=_divide_help(event, loss, found.period),
        severity=Severity.NOTE if cancels_scale else None,
    )


def _divide_help(event: Event, loss: str, period: str) -> str:
    """Return the code to write instead, in the user's own names."""
    by = period if re.fullmatch(r"[\w.]+", period) else f"({period})"
    if not loss.startswith("`"):
        return f"divide the loss by `{by}` before `backward()`"
    quotient = f"{loss.strip('`')} / {by}"
    is_plain = event.name == ".backward" and event.call is not None and _is_owner(event.call, loss.strip("`"))
    return f"divide before `backward()`: `({quotient}).backward()`" if is_plain else f"divide it before: `{quotient}`"


def _is_owner(call: ast.Call, loss: str) -> bool:
    return isinstance(call.func, ast.Attribute) and text_of(call.func.value) == loss


def _loss_name(event: Event) -> str:
    """Return the loss of a backward pass as the user calls it."""
    call = event.call
    node = None if call is None else call.func.value if isinstance(call.func, ast.Attribute) else None
    if call is not None and call.args:
        node = call.args[0]
    while isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        node = node.args[0]  # `scaler.scale(loss)`
    return f"`{text_of(node)}`" if isinstance(node, ast.Name | ast.Attribute) else "the loss"


def boundary_off_by_one(subject: Subject) -> Iterator[Hit]:
    """OOM203: windows of micro-batches end one too early or one too late."""
    for run in subject.runs:
        for found in accumulations(run):
            guard, boundary, owner = found.guard, found.boundary, found.owner
            if guard is not None and boundary is not None and owner is not None and found.step_offset in (-1, 1):
                first = _first_window(found, boundary)
                yield Hit(
                    guard.test,
                    owner,
                    f"`{text_of(guard.test)}` makes the first step after {first} instead of `{found.period}`: "
                    f"`{boundary.counter}` is one {'too low' if found.step_offset == -1 else 'too high'} there",
                    _boundary_help(found, boundary),
                    edits=shifted_boundary(found),
                )


def _first_window(found: AccumulationLoop, boundary: Boundary) -> str:
    """Return the number of micro-batches of the first step, in words."""
    if found.step_offset == 1:
        return f"`{found.period} - 1` micro-batches"
    waits = boundary.reaches or (boundary.least is not None and boundary.least > 0)
    return f"`{found.period} + 1` micro-batches" if waits else "one micro-batch"


def _boundary_help(found: AccumulationLoop, boundary: Boundary) -> str:
    more = "" if boundary.includes_last else ", and step on the last batch too"
    if boundary.reaches:
        return f"count before the test: `{boundary.counter}` should be the number of micro-batches since the last step"
    if found.count is None or found.count.first is None:
        return "count from one"
    ahead = 1 - found.count.first
    counted = boundary.counter if ahead == 0 else f"({boundary.counter} {'+' if ahead > 0 else '-'} {abs(ahead)})"
    return f"`{counted} % {found.period} == 0` holds after each `{found.period}` micro-batches{more}"


def last_window_dropped(subject: Subject) -> Iterator[Hit]:
    """OOM204: what follows the last whole window of an epoch gets no step."""
    for run in subject.runs:
        for found in accumulations(run):
            if found.step_offset == 0 and not handles_leftovers(found):
                yield from _dropped(found)


def _dropped(found: AccumulationLoop) -> Iterator[Hit]:
    what_happens = leftover_outcome(found)
    if what_happens is None or found.guard is None or found.owner is None:
        return
    batches = text_of(iterable_of(found.loop))
    yield Hit(
        found.guard.test,
        found.owner,
        f"where `{found.period}` does not divide `len({batches})`, the last micro-batches {what_happens[0]}",
        _last_step_help(found, batches),
        what_happens[1],
    )


def _last_step_help(found: AccumulationLoop, batches: str) -> str:
    counter, count = found.loop.counter, found.count
    if counter is None or count is None or count.by_hand or count.first is None:
        return "make a step after the loop for the rest, or on the last batch"
    number = counter if count.first == 1 else f"{counter} + {1 - count.first}"
    return f"step on the last batch too: `or {number} == len({batches})`"


_BOUNDLESS: Final = re.compile(r"""\binf\b|["']inf|1e\+?\d{2,}|10{5,}""")


def clip_before_boundary(subject: Subject) -> Iterator[Hit]:
    """OOM205: gradients are clipped before the window is complete."""
    for run in subject.runs:
        for found in accumulations(run):
            for event in run.of(Action.CLIP, within=found.loop):
                if found.steps_alone and not _only_measures(event) and found.is_in_each_micro_step(event):
                    yield _partial_clip(event, found)


def _only_measures(event: Event) -> bool:
    """Return whether the bound is infinite: the call is made for the norm that it returns."""
    return event.call is not None and _BOUNDLESS.search(text_of(event.call)) is not None


def _partial_clip(event: Event, found: AccumulationLoop) -> Hit:
    name = event.name.rpartition(".")[2]
    return Hit.at(
        event,
        f"`{name}` clips in every micro-step, but the gradients are complete only every `{found.period}`: "
        "each call clips a partial sum",
        help="clip once, right before the step" if found.guard is None else "clip right before the step",
    )


def scheduler_before_boundary(looked_at: Subject) -> Iterator[Hit]:
    """OOM206: the learning rate schedule goes on in every micro-step."""
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


RULES: Final = read_rules(
    zero_grad_in_every_micro_step,
    loss_not_divided,
    boundary_off_by_one,
    last_window_dropped,
    clip_before_boundary,
    scheduler_before_boundary,
)
