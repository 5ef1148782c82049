"""Lightning's manual optimisation: a training step that is called once a batch, with the batch's number."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.context import Loop
from oomdoctor.lint.flow.events import Event, Run, training_loops

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function

_INDEX: Final = 2  # (self, batch, batch_idx)


def as_loop(run: Run) -> Run | None:
    """A run of such a step as it looks within the loop that Lightning puts around it; None for any other run."""
    function = run.function
    if function is None or function.name != "training_step" or function.class_ is None:
        return None
    parameters = function.node.args.args
    if "automatic_optimization" not in run.module.text or len(parameters) <= _INDEX:
        return None
    loop = _around(function, parameters[_INDEX].arg)
    events = tuple(_within(loop, event) for event in run.events)
    return Run(run.module, function, events, (loop, *run.loops), training_loops(events))


def _around(function: Function, counter: str) -> Loop:
    """The loop of a number of steps: where an epoch ends in it is Lightning's business."""
    steps = ast.Call(ast.Name("range", ast.Load()), [ast.Name("batches", ast.Load())], [])
    node = ast.For(ast.Name(counter, ast.Store()), steps, function.node.body, [])
    ast.fix_missing_locations(ast.copy_location(node, function.node))
    return Loop(node, counter=counter, start=0, over_batches=True, function=function)


def _within(loop: Loop, event: Event) -> Event:
    context = event.context
    guards = tuple(replace(guard, depth=guard.depth + 1) for guard in context.guards)
    return replace(event, context=context.but(loops=(loop, *context.loops), guards=guards))
