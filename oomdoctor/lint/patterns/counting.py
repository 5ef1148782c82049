"""How a counter runs through a loop: where it begins, and whether each pass of the loop begins anew."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.writes import Write, unconditional, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.lint.flow.context import Frame, Loop


_PROGRESS: Final = frozenset({"tqdm", "track", "trange", "auto", "ProgressBar"})


@dataclass(frozen=True, slots=True)
class Count:
    """A variable that is one more in each iteration.

    Attributes:
        first: What it stands at in the first iteration, where it is asked; None where that is not known.
        by_hand: Whether statements of the body count, rather than the loop itself.
        restarts: Whether it begins anew each time that the loop is entered; None where that is not known.
    """

    first: int | None
    by_hand: bool
    restarts: bool | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a condition is tested.

    Attributes:
        test: The condition.
        loop: The loop that counts.
        frames: Calls that lead from the loop's own function to the condition, outermost first; empty where it is
            tested there.
        tree: The loop's function, or its module where it is in none.
    """

    test: ast.expr
    loop: Loop
    frames: tuple[Frame, ...]
    tree: ast.AST

    @property
    def bodies(self) -> list[ast.AST]:
        """What runs in an iteration, as far as it lies on the way to the condition."""
        return [*_body(self.loop), *(statement for frame in self.frames for statement in frame.function.node.body)]

    def comes_after(self, node: ast.AST) -> bool:
        """Whether the condition is tested after a statement of the loop's body, or of the function that has it."""
        inner = self.frames[-1].function.node if self.frames else None
        if inner is None or _lies_in(node, inner):
            return _line(self.test) > _line(node)
        call = self.frames[0].call
        return call is not None and call.lineno > _line(node)


def count_of(name: str, place: Place) -> Count | None:
    """How a variable counts where a condition is tested; None where it does not count by one, or not surely.

    Args:
        name: The variable, or a dotted text such as `self.pending`.
        place: The condition.
    """
    found = [write for write in writes(place.bodies) if write.text == name]
    counter, start = loop_counter(place.loop, place.tree)
    if name == counter:
        return None if found else Count(start, by_hand=False, restarts=True)
    steps = [write for write in found if write.added is not None]
    resets = [write for write in found if write.number is not None]
    if len(steps) != 1 or len(steps) + len(resets) != len(found) or not _counts_each(steps[0], place):
        return None
    if any(reset.number != 0 for reset in resets):
        return None
    before = _begins(name, place)
    numbers = {write.number for write in before}
    first = numbers.pop() if len(numbers) == 1 else None
    ahead = 1 if place.comes_after(steps[0].node) else 0
    return Count(None if first is None else first + ahead, by_hand=True, restarts=_restarts(before, place))


def loop_counter(loop: Loop, tree: ast.AST) -> tuple[str | None, int | None]:
    """The variable with which a loop itself counts, and what it begins with.

    Args:
        loop: The loop.
        tree: Its function or module: `batches = tqdm(enumerate(loader))` may stand before it.
    """
    if loop.counter is not None:
        return loop.counter, loop.start
    match loop.node:
        case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), _]), iter=ast.Name(id=batches)):
            values = [write.value for write in writes([tree]) if write.text == batches]
            if values and all(value is not None and _counts(value, batches) for value in values):
                return name, 0
    return None, None


def _counts(value: ast.expr, batches: str) -> bool:
    """Whether it is `enumerate(...)` from 0, with progress bars around it, or a progress bar around the name itself."""
    match value:
        case ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]):
            return True
        case ast.Call(args=[inner, *_]) if text_of(value.func).rpartition(".")[2] in _PROGRESS:
            return _counts(inner, batches)
    return isinstance(value, ast.Name) and value.id == batches


def set_back(place: Place) -> frozenset[str]:
    """Texts of what is set to zero in the iteration."""
    return frozenset(write.text for write in writes(place.bodies) if write.number == 0)


def _counts_each(step: Write, place: Place) -> bool:
    """Whether a statement adds one, and does so in each iteration."""
    always = list(unconditional(_body(place.loop)))
    for frame in place.frames:
        always.extend(unconditional(frame.function.node.body))
    return step.added == 1 and any(statement is step.node for statement in always)


def _begins(name: str, place: Place) -> list[Write]:
    """Where a counter is set outside the loop: in the loop's function, or in its class for an attribute."""
    tree = place.tree
    function = place.loop.function
    if "." in name and function is not None and function.class_ is not None:
        tree = function.class_.node
    inside = {id(node) for body in place.bodies for node in walk(body)}
    return [write for write in writes([tree]) if write.text == name and id(write.node) not in inside]


def _restarts(before: Sequence[Write], place: Place) -> bool | None:
    """Whether the statement that sets a counter runs again before the loop is entered again."""
    if not before:
        return None
    if not all(_lies_in(write.node, place.tree) for write in before):
        return False if _in_constructor(before, place) else None
    around = _around(place.loop.node, place.tree)
    return around is None or all(_lies_in(write.node, around) for write in before)


def _in_constructor(before: Sequence[Write], place: Place) -> bool:
    function = place.loop.function
    constructor = None if function is None or function.class_ is None else function.class_.methods.get("__init__")
    return constructor is not None and all(_lies_in(write.node, constructor.node) for write in before)


def _around(loop: ast.AST, tree: ast.AST) -> ast.AST | None:
    """The loop right around another one, in the same function."""
    around = [
        node
        for node in walk(tree)
        if isinstance(node, ast.For | ast.While) and node is not loop and _lies_in(loop, node)
    ]
    return max(around, key=_line, default=None)


def _body(loop: Loop) -> list[ast.stmt]:
    return loop.node.body if isinstance(loop.node, ast.For | ast.AsyncFor | ast.While) else []


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _lies_in(node: ast.AST, outer: ast.AST) -> bool:
    if isinstance(outer, ast.Module):
        return True
    return _line(outer) <= _line(node) <= (getattr(outer, "end_lineno", None) or _line(outer))
