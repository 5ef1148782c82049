"""OOM213: gradients are clipped where no step uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.iterations import (
    calls_between,
    exclude,
    explained_calls,
    implies,
    in_same_call,
    is_used,
    shared_loop,
    start_of,
)
from oomdoctor.lint.patterns.windows import optimizer_of, takes_closure
from oomdoctor.lint.rule import Hit, Subject, read_rule

_STEPS: Final = re.compile(r"step|apply|optim", re.IGNORECASE)
_ON_GRADIENTS: Final = (Action.BACKWARD, Action.AUTOGRAD, Action.STEP, Action.ZERO_GRAD)


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for event in run.of(Action.CLIP):
            loop = _loop_with_pass(run, event)
            if loop is None or not event.name.startswith("torch.nn.utils.clip_grad_") or is_used(event):
                continue
            if _one_optimizer(run, loop):
                yield from _judge(run, event, loop)


def _loop_with_pass(run: Run, clip: Event) -> Loop | None:
    """The innermost loop around both the clipping and a backward pass."""
    loops = [shared_loop(clip, event) for event in run.of(Action.BACKWARD) if event.context.managed is None]
    return max((loop for loop in loops if loop is not None), key=clip.context.loops.index, default=None)


def _one_optimizer(run: Run, loop: Loop) -> bool:
    steps = list(run.of(Action.STEP, within=loop))
    models = {event.value.identity for event in run.of(Action.FORWARD, within=loop)}
    return len({optimizer_of(step) for step in steps}) == 1 and len(models) <= 1 and not any(map(takes_closure, steps))


def _judge(run: Run, clip: Event, loop: Loop) -> Iterator[Hit]:
    around = [event for event in run.of(*_ON_GRADIENTS, Action.CLIP, within=loop) if not exclude(event, clip)]
    place = around.index(clip)
    before = [event for event in around[:place] if event.action is not Action.CLIP]
    after = [event for event in around[place + 1 :] if event.action is not Action.CLIP]
    if not before and not after:
        return
    last = before[-1] if before else after[-1]
    following = after[0] if after else before[0]
    name = text_of(clip.call.func) if clip.call is not None else "clip_grad_norm_"
    if (
        last.action is Action.STEP
        and following.action is Action.ZERO_GRAD
        and _is_late(run, clip, (last, following), loop)
    ):
        message = f"`{name}` comes after the step of `{optimizer_of(last)}`: the gradients are thrown away next"
        yield Hit.at(clip, message, help="clip between the backward pass and the step")
    elif before and _has_nothing_to_clip(clip, last, following, run) and implies(clip, last, loop):
        message = f"`{name}` comes before the backward pass, where there are no gradients to clip"
        yield Hit.at(clip, message, help="clip between the backward pass and the step")


def _has_nothing_to_clip(clip: Event, last: Event, following: Event, run: Run) -> bool:
    """Return whether gradients were set to zero right before, with nothing between that makes new ones."""
    if last.action is not Action.ZERO_GRAD or following.action is not Action.BACKWARD:
        return False
    return in_same_call(last, clip) and not any(calls_between(last, clip, run))


def _is_late(run: Run, clip: Event, around: tuple[Event, Event], loop: Loop) -> bool:
    """Return whether a step before and a `zero_grad` after the clipping always happen with it."""
    known = explained_calls(run)
    hidden = (
        node
        for node in walk(loop.node)
        if isinstance(node, ast.Call) and id(node) not in known and start_of(node) > start_of(clip.node)
    )
    return all(implies(clip, event, loop) for event in around) and not any(
        _STEPS.search(text_of(node.func)) for node in hidden
    )


RULE: Final = read_rule(__file__, _check)
