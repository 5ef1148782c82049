"""OOM302: each training step waits for the GPU to read a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Loop, Run, TensorDevice
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import conditions
from oomdoctor.lint.rule import Hit, Subject, read_rule

_HELP: Final = "sum up `.detach()` of it on the GPU, and read that once in a while or at the end of the epoch"


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for loop in run.training_loops():
            found = [event for event in run.of(Action.TO_HOST, within=loop) if _waits(event, loop, run)]
            if found:
                call = found[0].call
                more = f"; the loop has {len(found)} such calls" if len(found) > 1 else ""
                text = "`.item()`" if call is None else f"`{text_of(call)}`"
                yield Hit.at(found[0], f"{text} waits for the GPU in every step{more}", help=_HELP)


def _waits(event: Event, loop: Loop, run: Run) -> bool:
    """Return whether a call reads a number of a GPU's tensor in each iteration that has a backward pass."""
    if event.name != ".item" or event.context.loops[-1] is not loop or event.context.handlers:
        return False
    is_output = any(event.value.comes_from(made.result) for made in run.of(Action.FORWARD, within=loop))
    if event.value.device is TensorDevice.CPU or not (
        is_output or event.value.kind is Kind.TENSOR or event.value.is_loss
    ):
        return False
    passes = run.of(Action.BACKWARD, within=loop)
    expected = {text for other in passes for text in conditions(other.context.guards_in(loop))}
    return all(text in expected for text in conditions(event.context.guards_in(loop)))


RULE: Final = read_rule(__file__, _check)
