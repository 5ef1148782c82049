"""OOM101: a model is evaluated while autograd records."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Graph, Loop, Run
from oomdoctor.lint.flow.runs import gradients_by_callers, trained_elsewhere
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import is_of_other_tensors
from oomdoctor.lint.patterns.edits import with_no_grad
from oomdoctor.lint.patterns.evaluation import is_evaluation, is_evaluation_name, only_evaluates
from oomdoctor.lint.patterns.keeping import asks_for_gradients, batch_loops, depth_of, innermost, is_frozen, reported_at
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.lint.source import Edit

_HELP: Final = "put `with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function"
_HELP_ASYNC: Final = "put `with torch.no_grad():` around the loop; on an `async def` the decorator does nothing"


def _check(subject: Subject) -> Iterator[Hit]:
    hits = [hit for run in subject.runs for hit in _in_run(run)]
    yield from (hit for hit in hits if not is_of_other_tensors(hit.node, hit.module))


def _in_run(run: Run) -> Iterator[Hit]:
    loops = batch_loops(run)
    reported: list[Loop] = []
    for event in run.of(Action.FORWARD):
        loop = innermost(event.context, loops)
        if loop is None or any(loop is other for other in reported) or event.result.graph is not Graph.YES:
            continue
        if is_evaluation(run, event, loop) and not _is_wanted(run, event, loop):
            reported.append(loop)
            if gradients_by_callers(event) in (None, GradMode.ON) and not trained_elsewhere(event, loop):
                yield _hit(run, event, loop)


def _is_wanted(run: Run, event: Event, loop: Loop) -> bool:
    """Return whether a gradient is taken of the pass's result, or none can be, so that there is no graph."""
    if asks_for_gradients(run, loop) or is_frozen(run, event):
        return True
    return any(other.value.comes_from(event.result) for other in run.of(Action.BACKWARD, Action.AUTOGRAD))


def _hit(run: Run, event: Event, loop: Loop) -> Hit:
    node, module = reported_at(run, event, depth_of(event.context, loop))
    model = text_of(event.call.func) if event.call is not None else "the model"
    is_async = loop.function is not None and isinstance(loop.function.node, ast.AsyncFunctionDef)
    message = f"`{model}` is evaluated on each batch while autograd records, so that each pass holds its activations"
    return Hit(node, module, message, _HELP_ASYNC if is_async else _HELP, edits=_edits(run, loop))


def _edits(run: Run, loop: Loop) -> tuple[Edit, ...]:
    """A decorator, where the whole function, with all that it calls, surely does nothing but evaluate."""
    function = loop.function
    if function is None:
        return ()
    inside = [event for event in run.events if any(frame.function is function for frame in event.context.frames)]
    actions = {event.action for event in inside}
    if actions & {Action.BACKWARD, Action.AUTOGRAD, Action.STEP, Action.NEEDS_GRADIENT, Action.ZERO_GRAD}:
        return ()
    if (Action.EVAL_MODE in actions or is_evaluation_name(function)) and only_evaluates(function, run.events):
        return with_no_grad(function)
    return ()


RULE: Final = read_rule(__file__, _check)
