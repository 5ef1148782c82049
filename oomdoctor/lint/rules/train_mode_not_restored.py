"""OOM217: training goes on in evaluation mode after the first evaluation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.iterations import explained_calls
from oomdoctor.lint.rule import Hit, Subject, read_rule

_RESTORES: Final = re.compile(r"^(?:set_|to_)?(?:train|training)(?:_mode)?$|^restore|^mode$")
"""Names of what may put a model back into training mode."""


def _check(subject: Subject) -> Iterator[Hit]:
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


RULE: Final = read_rule(__file__, _check)
