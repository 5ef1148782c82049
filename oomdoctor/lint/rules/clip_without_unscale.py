"""OOM212: gradients are clipped while they are still multiplied by the scaler's scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import conditions, exclude, in_same_call, start_of, statement_of
from oomdoctor.lint.patterns.windows import is_scaled, optimizer_of, scaler_of, scales_by_hand
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.lint.source import Edit


def _check(subject: Subject) -> Iterator[Hit]:
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


RULE: Final = read_rule(__file__, _check)
