"""What a loop over batches keeps from one batch to the next."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.flow.values import Kind
from oomdoctor.lint.patterns.batch_loops import batch_loops, depth_of, seen_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.flow.context import Loop
    from oomdoctor.lint.flow.events import Event, Run

_GROW: Final = frozenset({Keeping.SUM, Keeping.APPEND, Keeping.ITEM, Keeping.ITEM_SUM, Keeping.YIELD})

_WITH_STEP: Final = 3  # arguments
_TAKE_ONE: Final = frozenset({"append", "appendleft", "add", "put"})


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that is kept from each batch.

    Attributes:
        run: Where it happens.
        event: The keeping.
        loop: The outermost loop over batches whose iterations each add to what is kept.
    """

    run: Run
    event: Event
    loop: Loop

    def forgotten(self) -> tuple[Event, ...]:
        """Where what is kept is let go of within the loop."""
        return tuple(
            event for event in self.run.of(Act.FORGET, within=self.loop) if _is_of(event.target, self.event.target)
        )

    def seen_at(self) -> tuple[ast.expr | ast.stmt, Module]:
        """Where to say so: at the keeping, or at the call that hands the value to what keeps it, such as a meter."""
        frames = self.event.context.frames
        makers = [event.context.frames for event in self.forwards()]
        depth = len(frames)
        least = depth_of(self.event.context, self.loop)
        while depth > least and makers and not any(frames[:depth] == made[:depth] for made in makers):
            depth -= 1
        return seen_at(self.run, self.event, depth)

    def takes_slices(self) -> bool:
        """Whether the loop goes through one thing slice by slice, which may be one large batch: `range(0, n, size)`."""
        return (
            isinstance(self.loop.node, ast.For)
            and isinstance(self.loop.node.iter, ast.Call)
            and _is_range(self.loop.node.iter)
        )

    def forwards(self) -> tuple[Event, ...]:
        """The forward passes that it was computed from."""
        return tuple(event for event in self.run.of(Act.FORWARD) if self.event.value.comes_from(event.result))


def kept_over_batches(run: Run) -> Iterator[Kept]:
    """Each value that is added to a sum, a list or a mapping once a batch."""
    loops = batch_loops(run)
    for event in run.of(Act.KEEP):
        if event.how in _GROW:
            loop = _outlived(event, loops)
            if loop is not None and (event.how is not Keeping.ITEM or _is_counted(event, loop) or _adds(event)):
                yield Kept(run, event, loop)


def _outlived(event: Event, loops: tuple[Loop, ...]) -> Loop | None:
    around = event.context.loops
    if event.how is Keeping.YIELD:
        return next((loop for loop in reversed(around) if _is_list(loop, event) and _in(loop, loops)), None)
    if event.outlives is None:
        return None
    first = next(index for index, loop in enumerate(around) if loop is event.outlives)
    return next((loop for loop in around[first:] if _in(loop, loops)), None)


def _is_list(loop: Loop, event: Event) -> bool:
    """Whether the loop is the list comprehension whose element is kept; a generator keeps none."""
    node = loop.node
    return (isinstance(node, ast.ListComp) and node.elt is event.node) or (
        isinstance(node, ast.DictComp) and node.value is event.node
    )


def _in(loop: Loop, loops: tuple[Loop, ...]) -> bool:
    return any(loop is other for other in loops)


def _is_counted(event: Event, loop: Loop) -> bool:
    """Whether each iteration stores under a key of its own: by the loop's counter, and not into a slice."""
    target = event.node.targets[0] if isinstance(event.node, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Name | ast.BinOp | ast.Tuple):
        return False
    names = {node.id for node in walk(target.slice) if isinstance(node, ast.Name)}
    return loop.counter in names and event.target_value.kind is Kind.CONTAINER


def _adds(event: Event) -> bool:
    """Whether it is `totals[key] = totals[key] + value`."""
    value = event.node.value if isinstance(event.node, ast.Assign) else None
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    return event.target in {text_of(value.left), text_of(value.right)}


def _is_of(forgotten: str, target: str) -> bool:
    """Whether forgetting one text forgets the other: `xs` and `xs[:]` for `xs`, `meters` for `meters["loss"]`."""
    base = forgotten.removesuffix("[:]")
    return bool(base) and (target == base or target.startswith((f"{base}[", f"{base}.")))


def kept_expression(event: Event) -> ast.expr | None:
    """The expression that is kept, as it is written; None where it is not one expression of its own."""
    node = event.node
    if isinstance(node, ast.AugAssign):
        elements = node.value.elts if isinstance(node.value, ast.List) else []
        return elements[0] if len(elements) == 1 else node.value
    if isinstance(node, ast.Assign):
        return node.value
    if event.how is Keeping.YIELD and isinstance(node, ast.expr):
        return node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        return node.args[0] if node.func.attr in _TAKE_ONE else None
    return None


def _is_range(call: ast.Call) -> bool:
    """Whether a call is `range(start, stop, step)`, with a progress bar around it or without."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("range", "trange"):
        return len(call.args) == _WITH_STEP
    return bool(call.args) and isinstance(call.args[0], ast.Call) and _is_range(call.args[0])
