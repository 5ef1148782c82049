"""Counters of a loop: writes to names, where a count begins, and what does not change in the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from oomdoctor.lint.flow.events import Event, FollowedCall, Loop
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import walk

_DEEPEST: Final = 3


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that gives a name a value.

    Attributes:
        node: The statement.
        text: The name, or a dotted text such as `self.pending`.
        value: New value; None where the statement does not tell it.
        added: The whole number that is added to what it was; None where it is something else.
    """

    node: ast.AST
    text: str
    value: ast.expr | None = None
    added: int | None = None

    @property
    def number(self) -> int | None:
        """The whole number that it is set to; None where it is something else."""
        value = self.value
        return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None


def writes(nodes: Sequence[ast.AST]) -> list[Write]:
    """Return all writes in these nodes, at whatever depth."""
    return [write for node in nodes for write in _written_in(node)]


@lru_cache(maxsize=128)
def _written_in(node: ast.AST) -> tuple[Write, ...]:
    """Return the writes of one node; cached, since every rule about accumulation asks again."""
    return tuple(write for inner in walk(node) for write in _written(inner))


def definitions(found: Sequence[Write]) -> dict[str, ast.expr]:
    """Return the definition of each name that is written once only."""
    times: dict[str, int] = {}
    for write in found:
        times[write.text] = times.get(write.text, 0) + 1
    return {write.text: write.value for write in found if write.value is not None and times[write.text] == 1}


def expanded_text(node: ast.expr, meanings: Mapping[str, ast.expr], depth: int = _DEEPEST) -> str:
    """An expression's text, and those of what the names in it stand for, and so on.

    Args:
        node: The expression.
        meanings: Definitions of names.
        depth: Levels of definitions to follow.
    """
    texts = [text_of(node)]
    for part in walk(node):
        meaning = meanings.get(part.id) if isinstance(part, ast.Name) else None
        if meaning is not None and meaning is not node and depth > 0:
            texts.append(expanded_text(meaning, meanings, depth - 1))
    return " ".join(texts)


def unconditional(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run whenever a body does and nothing leaves it before."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            yield from unconditional(statement.body)


def _written(node: ast.AST) -> Iterator[Write]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _to_target(node, target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _to_target(node, target, value)
        case ast.NamedExpr(target=target, value=value):
            yield Write(node, target.id, value)
        case ast.AugAssign(target=ast.Name() | ast.Attribute() | ast.Subscript() as target, op=op, value=value):
            yield Write(node, text_of(target), added=_number(value) if isinstance(op, ast.Add) else None)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            yield from (Write(node, name) for name in _names(target))
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from (Write(node, name) for name in _names(target))
        case ast.Delete(targets=targets):
            yield from (Write(node, name) for target in targets for name in _names(target))


def _to_target(node: ast.AST, target: ast.expr, value: ast.expr) -> Iterator[Write]:
    if isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
        text = text_of(target)
        yield Write(node, text, value, _added(text, value))
        return
    for index, name in enumerate(_names(target)):
        yield Write(node, name, _part(target, value, index))


def _part(target: ast.expr, value: ast.expr, index: int) -> ast.expr | None:
    """Return the value of one of several targets: `divmod` and displays are taken apart, nothing else is."""
    if not isinstance(target, ast.Tuple | ast.List) or not all(isinstance(inner, ast.Name) for inner in target.elts):
        return None
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        return value.elts[index]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "divmod":
        return ast.Subscript(value, ast.Constant(index), ast.Load())
    return None


def _added(text: str, value: ast.expr) -> int | None:
    """Return the number that `text = value` adds, as in `n = n + 1`; None where it adds none."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for side, other in ((left, right), (right, left)):
                if isinstance(side, ast.Name | ast.Attribute | ast.Subscript) and text_of(side) == text:
                    return _number(other)
    return None


def _number(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _names(target: ast.expr) -> list[str]:
    """Return every name and attribute that an assignment to a target sets."""
    if isinstance(target, ast.Tuple | ast.List):
        return [name for inner in target.elts for name in _names(inner)]
    if isinstance(target, ast.Starred):
        return _names(target.value)
    return [text_of(target)] if isinstance(target, ast.Name | ast.Attribute | ast.Subscript) else []


_PROGRESS: Final = frozenset({"tqdm", "track", "trange", "auto", "ProgressBar"})


@dataclass(frozen=True, slots=True)
class LoopCounter:
    """A variable that is one more in each iteration.

    Attributes:
        first: Value in the first iteration, at the condition; None where that is not known.
        by_hand: Whether statements of the body count, rather than the loop itself.
        restarts: Whether it begins anew each time that the loop is entered; None where that is not known.
    """

    first: int | None
    by_hand: bool
    restarts: bool | None


@dataclass(frozen=True, slots=True)
class TestedCondition:
    """A condition with the loop and the calls around it.

    Attributes:
        test: The condition.
        loop: The loop that counts.
        frames: Calls that lead from the loop's own function to the condition, outermost first; empty where it is
            tested there.
        tree: The loop's function, or its module where it is in none.
    """

    test: ast.expr
    loop: Loop
    frames: tuple[FollowedCall, ...]
    tree: ast.AST

    @property
    def bodies(self) -> list[ast.AST]:
        """Return the bodies that run in an iteration on the way to the condition."""
        return [*body_of(self.loop), *(statement for frame in self.frames for statement in frame.function.node.body)]

    def comes_after(self, node: ast.AST) -> bool:
        """Return whether the condition is tested after a statement of the loop's body or of the loop's function."""
        inner = self.frames[-1].function.node if self.frames else None
        if inner is None or _lies_in(node, inner):
            return _line(self.test) > _line(node)
        call = self.frames[0].call
        return call is not None and call.lineno > _line(node)


def count_of(name: str, place: TestedCondition) -> LoopCounter | None:
    """Return how a variable counts at a condition; None where it does not count by one, or not surely.

    Args:
        name: The variable, or a dotted text such as `self.pending`.
        place: The condition.
    """
    found = [write for write in writes(place.bodies) if write.text == name]
    counter, start = loop_counter(place.loop, place.tree)
    if name == counter:
        return None if found else LoopCounter(start, by_hand=False, restarts=True)
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
    return LoopCounter(None if first is None else first + ahead, by_hand=True, restarts=_restarts(before, place))


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
    """Return whether a value is `enumerate(...)` from 0, or a progress bar of the name, progress bars aside."""
    match value:
        case ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]):
            return True
        case ast.Call(args=[inner, *_]) if text_of(value.func).rpartition(".")[2] in _PROGRESS:
            return _counts(inner, batches)
    return isinstance(value, ast.Name) and value.id == batches


def set_back(place: TestedCondition) -> frozenset[str]:
    """Texts of what is set to zero in the iteration."""
    return frozenset(write.text for write in writes(place.bodies) if write.number == 0)


def _counts_each(step: Write, place: TestedCondition) -> bool:
    """Return whether a statement adds one in each iteration."""
    always = list(unconditional(body_of(place.loop)))
    for frame in place.frames:
        always.extend(unconditional(frame.function.node.body))
    return step.added == 1 and any(statement is step.node for statement in always)


def _begins(name: str, place: TestedCondition) -> list[Write]:
    """Return the writes that set a counter outside the loop: in its function, or in the class for an attribute."""
    tree = place.tree
    function = place.loop.function
    if "." in name and function is not None and function.class_ is not None:
        tree = function.class_.node
    inside = {id(node) for body in place.bodies for node in walk(body)}
    return [write for write in writes([tree]) if write.text == name and id(write.node) not in inside]


def _restarts(before: Sequence[Write], place: TestedCondition) -> bool | None:
    """Return whether the statement that sets a counter runs again before the loop is entered again."""
    if not before:
        return None
    if not all(_lies_in(write.node, place.tree) for write in before):
        return False if _in_constructor(before, place) else None
    around = _around(place.loop.node, place.tree)
    return around is None or all(_lies_in(write.node, around) for write in before)


def _in_constructor(before: Sequence[Write], place: TestedCondition) -> bool:
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


def body_of(loop: Loop) -> list[ast.stmt]:
    """The statements of a loop; none for a comprehension."""
    return loop.node.body if isinstance(loop.node, ast.For | ast.AsyncFor | ast.While) else []


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _lies_in(node: ast.AST, outer: ast.AST) -> bool:
    if isinstance(outer, ast.Module):
        return True
    return _line(outer) <= _line(node) <= (getattr(outer, "end_lineno", None) or _line(outer))


_VARYING: Final = re.compile(r"step|iter|batch|count|sync|update|boundary|last|epoch", re.IGNORECASE)
"""Words in an attribute's name by which it may change between iterations without an assignment in sight."""


class LoopConstants:
    """The names that do not change while a loop runs, as far as its text tells."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._varying = frozenset(write.text for write in writes([loop.node]))

    def holds_throughout(self, test: ast.expr) -> bool:
        """Return whether a condition is the same in each iteration, as `if args.clip > 0` is."""
        parts = list(walk(test))
        if any(isinstance(node, ast.Call) or _may_vary(node) for node in parts):
            return False
        names = {text_of(node) for node in parts if isinstance(node, ast.Name | ast.Attribute)}
        inside = is_tested_in(self._loop.node, test)
        return not names & self._varying and (inside or all(name.startswith("self") for name in names))


def is_tested_in(node: ast.AST, test: ast.expr) -> bool:
    """Return whether a piece of code tests a condition."""
    return test in _tests(node)


@lru_cache(maxsize=32)
def _tests(node: ast.AST) -> frozenset[ast.expr]:
    return frozenset(inner.test for inner in walk(node) if isinstance(inner, ast.If | ast.IfExp | ast.While))


def _may_vary(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _VARYING.search(node.attr) is not None


def counts_micro_batches(event: Event, period: str) -> bool:
    """Return whether a schedule's length is the loader's, without the accumulation steps.

    Args:
        event: The schedule's step.
        period: Text of the accumulation steps.
    """
    node = event.value.node
    if not isinstance(node, ast.Call):
        return False
    tree = event.module.tree if event.function is None else event.function.node
    text = expanded_text(node, definitions(writes([tree])))
    return "len(" in text and period.rpartition(".")[2] not in text
