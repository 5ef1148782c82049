"""Rules on clipping gradients and on a gradient scaler (OOM212 to OOM214)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.iterations import (
    calls_between,
    conditions,
    exclude,
    explained_calls,
    implies,
    in_same_call,
    is_used,
    shared_loop,
    start_of,
    statement_of,
)
from oomdoctor.lint.patterns.windows import is_scaled, optimizer_of, scaler_of, scales_by_hand, takes_closure
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.lint.source import Edit


def clip_without_unscale(subject: Subject) -> Iterator[Hit]:
    """OOM212: gradients are clipped while they are still multiplied by the scaler's scale."""
    for run in subject.runs:
        told: list[tuple[Event, Event]] = []
        for clip, step in _clips(run):
            if not any(step is other and not exclude(clip, earlier) for earlier, other in told):
                scaler, optimizer = scaler_of(step), optimizer_of(step)
                message = f"`{text_of(clip.call.func)}` clips gradients that `{scaler}` has scaled up"  # type: ignore[union-attr]
                help_ = f"call `{scaler}.unscale_({optimizer})` before it"
                yield Hit.at(
                    clip, message, help=help_, edits=_edits(run, clip, step, f"{scaler}.unscale_({optimizer})")
                )  # unscaled before the first clip, they are for those that follow it
            told.append((clip, step))


def _clips(run: Run) -> Iterator[tuple[Event, Event]]:
    """Clips of gradients that are still scaled, each with the step that uses them."""
    for place, event in enumerate(run.events):
        if event.action is Action.CLIP and event.name.startswith("torch.nn.utils.clip_grad_"):
            step = _step_after(run, place, event)
            if step is not None and _is_still_scaled(run, place, event) and not scales_by_hand(run, event):
                yield event, step


def _step_after(run: Run, place: int, clip: Event) -> Event | None:
    """The step through a scaler that uses what is clipped."""
    for event in run.events[place + 1 :]:
        if event.action is Action.STEP and not exclude(event, clip):
            return event if scaler_of(event) is not None else None
        if event.action is Action.BACKWARD and event.context.loops == clip.context.loops:
            return None
    return None


def _is_still_scaled(run: Run, place: int, clip: Event) -> bool:
    """Return whether every pass before the clipping was scaled, and nothing has unscaled the gradients since."""
    passes = False
    for event in reversed(run.events[:place]):
        if exclude(event, clip):
            continue
        if event.action is Action.UNSCALE or (event.action is Action.STEP and passes):
            return passes and event.action is Action.STEP
        if event.action is Action.BACKWARD:
            if not is_scaled(event):
                return False
            passes = True
    return passes


def _edits(run: Run, clip: Event, step: Event, call: str) -> tuple[Edit, ...]:
    """Puts the call before the statement, where it then runs once before each step of the one optimizer."""
    statement = statement_of(clip)
    steps = [event for event in run.of(Action.STEP) if scaler_of(event) is not None]
    passes = list(run.of(Action.BACKWARD))
    clips = {id(event.node) for event in run.of(Action.CLIP)}  # of one optimizer: it may be unscaled once a step only
    if statement is None or len(steps) != 1 or len(clips) != 1 or any(run.of(Action.UNSCALE)):
        return ()
    if not all(in_same_call(clip, event) for event in (step, *passes)):  # others may call a helper with unscaled ones
        return ()
    needed = conditions(step.context.guards).items()
    if not needed <= conditions(clip.context.guards).items() or clip.context.loops != step.context.loops:
        return ()
    line, column = start_of(statement)
    before = clip.module.text.splitlines()[line - 1].encode()[:column].decode()
    return () if before.strip() else (Edit((line, column), (line, column), f"{call}\n{before}"),)


_STEPS: Final = re.compile(r"step|apply|optim", re.IGNORECASE)
_ON_GRADIENTS: Final = (Action.BACKWARD, Action.AUTOGRAD, Action.STEP, Action.ZERO_GRAD)


def clip_without_effect(subject: Subject) -> Iterator[Hit]:
    """OOM213: gradients are clipped where no step uses them."""
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


def step_past_scaler(subject: Subject) -> Iterator[Hit]:
    """OOM214: the optimizer steps by itself with gradients that a scaler has scaled."""
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
                    yield _past_scaler(run, place, event, scaled)


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


def _past_scaler(run: Run, place: int, step: Event, scaled: Event) -> Hit:
    optimizer, scaler = optimizer_of(step), text_of(scaled.value.node.func.value)  # type: ignore[union-attr]
    earlier = (event for event in run.events[:place] if event.action is Action.STEP and _may_meet(event, step))
    if any(scaler_of(event) is not None and optimizer_of(event) == optimizer for event in earlier):
        message = f"`{optimizer}` steps a second time with the gradients that `{scaler}.step` has used"
        return Hit.at(step, message, help=f"leave it out: `{scaler}.step({optimizer})` has made the step")
    message = f"`{optimizer}` steps with gradients that `{scaler}` has scaled up"
    return Hit.at(step, message, help=f"call `{scaler}.step({optimizer})`, then `{scaler}.update()`")


RULES: Final = read_rules(clip_without_unscale, clip_without_effect, step_past_scaler)
