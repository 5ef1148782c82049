"""Whether other files of the repository need the gradients of what looks like an evaluation."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.functions import Function
from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.runs import runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.flow.context import Loop
    from oomdoctor.lint.flow.events import Event

_MOST_CALLERS: Final = 8
_BACKWARD: Final = frozenset({"backward", "grad"})


def trained_elsewhere(event: Event, loop: Loop) -> bool:
    """Whether a function of another file that the loop's function calls, or that calls it, takes a gradient.

    Args:
        event: The forward pass.
        loop: The loop over batches that it is in.
    """
    return any(_takes_gradients(other) for other in _called(loop)) or _is_wanted_by_callers(event)


def _called(loop: Loop) -> Iterator[Function]:
    """Functions of other files that are called in a loop; `forward` of a model is none of them."""
    module = None if loop.function is None else loop.function.module
    if module is None or module.project is None:
        return
    for node in walk(loop.node):
        name = module.qualified(node.func) if isinstance(node, ast.Call) else None
        found = None if name is None else module.project.definition(name, module)
        if isinstance(found, Function):
            yield found


def _takes_gradients(function: Function) -> bool:
    calls = (node.func for node in walk(function.node) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Attribute) and called.attr in _BACKWARD for called in calls)


def _is_wanted_by_callers(event: Event) -> bool:
    """Whether a backward pass is made, in a file that calls the function, of what the forward pass gives."""
    project, frames = event.module.project, event.context.frames
    if project is None or not frames:
        return False
    entry = frames[0].function
    callers = project.callers(entry.name, entry.module, _MOST_CALLERS)
    return any(_is_wanted_in(module, event) for module in callers)


def _is_wanted_in(module: Module, event: Event) -> bool:
    for run in runs_of(module):
        passes = [other for other in run.of(Act.FORWARD) if _is_same_place(other, event)]
        losses = [other.value for other in run.of(Act.BACKWARD, Act.AUTOGRAD)] if passes else []
        if any(loss.comes_from(other.result) for loss in losses for other in passes):
            return True
    return False


def _is_same_place(one: Event, other: Event) -> bool:
    places = [(event.module.path, event.node.lineno, event.node.col_offset) for event in (one, other)]
    return places[0] == places[1]
