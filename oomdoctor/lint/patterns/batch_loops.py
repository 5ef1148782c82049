"""Which loops take batches, and from where in them a thing is seen that happens deeper down."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.values import Kind

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.flow.context import Context, Loop
    from oomdoctor.lint.flow.events import Event, Run

_DATA: Final = re.compile(r"loader|batches$|dataset|data_iter", re.IGNORECASE)


def batch_loops(run: Run) -> tuple[Loop, ...]:
    """The loops whose iteration takes a batch: over a loader, or around a backward pass."""
    found = [loop for loop in run.loops if loop.over_batches or _goes_over_data(loop)]
    return (*found, *(loop for loop in run.training_loops() if not any(loop is other for other in found)))


def _goes_over_data(loop: Loop) -> bool:
    """Whether what a `for` goes over is named as data: `self.loader.validation()`, `batches[:10]`."""
    node = loop.node
    return isinstance(node, ast.For) and any(
        _DATA.search(getattr(inner, "id", getattr(inner, "attr", ""))) is not None
        for inner in walk(node.iter)
        if isinstance(inner, ast.Name | ast.Attribute)
    )


def innermost(context: Context, loops: tuple[Loop, ...]) -> Loop | None:
    """The innermost of these loops that is around a line."""
    return next((loop for loop in reversed(context.loops) if any(loop is other for other in loops)), None)


def depth_of(context: Context, loop: Loop) -> int:
    """How many calls were followed to the function that has the loop; 0 at the top of a module."""
    if loop.function is None:
        return 0
    frames = enumerate(context.frames, 1)
    return next((depth for depth, frame in frames if frame.function is loop.function), len(context.frames))


def seen_at(run: Run, event: Event, depth: int) -> tuple[ast.expr | ast.stmt, Module]:
    """Where a reader of a function sees an event: at the call that leads to it, or at the event itself.

    Args:
        run: The run that the event belongs to.
        event: What happens.
        depth: How many calls were followed to the function that is read.

    Returns:
        The node and the file that it lies in.
    """
    frames = event.context.frames
    call = frames[depth].call if len(frames) > depth else None
    if call is None:
        return event.node, event.module
    return call, frames[depth - 1].function.module if depth else run.module


def asks_for_gradients(run: Run, loop: Loop) -> bool:
    """Whether something in a loop asks for gradients: a backward pass, `autograd.grad`, an input that requires them."""
    acts = (Act.BACKWARD, Act.AUTOGRAD, Act.STEP, Act.NEEDS_GRADIENT)
    return any(True for _ in run.of(*acts, within=loop))


def is_frozen(run: Run, forward: Event) -> bool:
    """Whether something was frozen that may be all of the model that a pass goes through: nothing of it ever trains."""
    frozen = [event.value for event in run.of(Act.FREEZE)]
    if not any(value.kind is not Kind.MODEL or value.identity == forward.value.identity for value in frozen):
        return False
    passes = [event.result for event in run.of(Act.FORWARD) if event.value.identity == forward.value.identity]
    return not any(event.value.comes_from(made) for event in run.of(Act.BACKWARD) for made in passes)
