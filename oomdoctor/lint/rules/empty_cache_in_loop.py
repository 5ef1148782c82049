"""OOM106: the allocator's cache is emptied in every training step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import conditions, node_beside
from oomdoctor.lint.rule import Hit, Subject, read_rule

_ON_THE_GPU: Final = re.compile(r"is_available\(\)|cuda|gpu", re.IGNORECASE)
_HELP: Final = "remove it, or call it once where another process or model needs the memory"


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for loop in run.training_loops():
            marks = [
                mark for mark in run.of(Action.BACKWARD, Action.STEP, within=loop) if mark.context.loops[-1] is loop
            ]
            for event in run.of(Action.EMPTY_CACHE, within=loop):
                if marks and not _is_rare(event, marks, loop):
                    yield _hit(event, marks[0], run)


def _is_rare(event: Event, marks: list[Event], loop: Loop) -> bool:
    """Return whether the call is rarer than the optimizer's step: every so many steps, on a flag, on an error."""
    if event.context.handlers or event.context.gradients is not GradMode.ON:
        return True
    expected = {text for mark in marks for text in conditions(mark.context.guards_in(loop))}
    own = conditions(event.context.guards_in(loop))
    return any(text not in expected and not _ON_THE_GPU.search(text) for text in own)


def _hit(event: Event, mark: Event, run: Run) -> Hit:
    node, module = node_beside(event, mark, run)
    name = text_of(event.call.func) if event.call is not None else "empty_cache"
    return Hit(
        node, module, f"`{name}` in every step waits for the GPU and makes the next step request its memory anew", _HELP
    )


RULE: Final = read_rule(__file__, _check)
