"""Rules on evaluation: what it costs, and what it leaves behind (OOM101, OOM217)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Graph, Loop, Run
from oomdoctor.lint.flow.runs import gradients_by_callers, trained_elsewhere
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import is_of_other_tensors, walk
from oomdoctor.lint.patterns.edits import with_no_grad
from oomdoctor.lint.patterns.evaluation import is_evaluation, is_evaluation_name, only_evaluates
from oomdoctor.lint.patterns.iterations import explained_calls
from oomdoctor.lint.patterns.keeping import asks_for_gradients, batch_loops, depth_of, innermost, is_frozen, reported_at
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.lint.source import Edit

_NO_GRAD_HELP: Final = "put `with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function"
_NO_GRAD_HELP_ASYNC: Final = "put `with torch.no_grad():` around the loop; on an `async def` the decorator does nothing"


def evaluation_without_no_grad(subject: Subject) -> Iterator[Hit]:
    """OOM101: a model is evaluated while autograd records."""
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
    return Hit(node, module, message, _NO_GRAD_HELP_ASYNC if is_async else _NO_GRAD_HELP, edits=_decorator(run, loop))


def _decorator(run: Run, loop: Loop) -> tuple[Edit, ...]:
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


_RESTORES: Final = re.compile(r"^(?:set_|to_)?(?:train|training)(?:_mode)?$|^restore|^mode$")
"""Names of what may put a model back into training mode."""


def train_mode_not_restored(subject: Subject) -> Iterator[Hit]:
    """OOM217: training goes on in evaluation mode after the first evaluation."""
    for run in subject.runs:
        for event in run.of(Action.EVAL_MODE):
            loop = _shared_loop(run, event)
            if loop is not None and _evaluates_after(run, event, loop) and not _may_restore(run, event, loop):
                model = _owner(event) or "the model"
                message = f"`{model}` stays in evaluation mode: all training after the first evaluation is done in it"
                help_ = f"call `{model}.train()` after the evaluation, or before each pass over the training data"
                yield Hit.at(event, message, help=help_)


def _shared_loop(run: Run, mode: Event) -> Loop | None:
    """Return the innermost loop in which the model is put into evaluation mode and trained as well."""
    trained = [
        made.context.loops
        for made in run.of(Action.FORWARD)
        if made.value.identity == mode.value.identity > 0 and _is_trained(run, made)
    ]
    return next((loop for loop in reversed(mode.context.loops) if any(loop in loops for loops in trained)), None)


def _is_trained(run: Run, made: Event) -> bool:
    return any(other.value.comes_from(made.result) for other in run.of(Action.BACKWARD, Action.AUTOGRAD))


def _evaluates_after(run: Run, mode: Event, loop: Loop) -> bool:
    """Return whether no gradient is taken of the next pass, which tells the mode's purpose."""
    later = run.events[run.events.index(mode) :]
    for event in later:
        if event.action is Action.FORWARD and event.value.identity == mode.value.identity:
            return loop in event.context.loops and not _is_trained(run, event)
    return False


def _may_restore(run: Run, mode: Event, loop: Loop) -> bool:
    """Return whether something in the loop, or in what is called from it, may switch back to training mode."""
    if any(_is_of(other, mode) for other in run.of(Action.TRAIN_MODE, within=loop)):
        return True
    functions = {frame.function for event in run.of(within=loop) for frame in event.context.frames}
    holders = [loop.node, *(function.node for function in functions if function is not loop.function)]
    explained = explained_calls(run)
    nodes = (node for holder in holders for node in walk(holder) if id(node) not in explained)
    return any(_RESTORES.search(_name(node)) is not None for node in nodes)


def _is_of(other: Event, mode: Event) -> bool:
    """Return whether a switch is of the same model, of a part or a whole of it, or of one that is not known."""
    if 0 in (other.value.identity, mode.value.identity) or other.value.identity == mode.value.identity:
        return True
    one, another = (event.name and _owner(event).split(".") for event in (other, mode))
    return all(first == second for first, second in zip(one, another, strict=False))


def _owner(event: Event) -> str:
    call = event.call
    return text_of(call.func.value) if call is not None and isinstance(call.func, ast.Attribute) else ""


def _name(node: ast.AST) -> str:
    """Return the name of what is called or set."""
    if isinstance(node, ast.Call):
        return text_of(node.func).rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else ""


RULES: Final = read_rules(evaluation_without_no_grad, train_mode_not_restored)
