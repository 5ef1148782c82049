"""Whether something may go through a graph once its iteration is over, or where nobody can see it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.state import base_of, text_of
from oomdoctor.lint.flow.values import Graph, Kind
from oomdoctor.lint.patterns.iterations import carried, end_of, start_of, within
from oomdoctor.lint.patterns.surroundings import explained, is_harmless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.lint.flow.context import Loop
    from oomdoctor.lint.flow.events import Event, Run
    from oomdoctor.lint.flow.values import Value

_WITHOUT_GRAPH: Final = frozenset({Kind.NUMBER, Kind.ARRAY, Kind.NONE})
_PLAIN: Final = frozenset({"data", "shape", "device", "dtype", "ndim", "requires_grad"})
"""Attributes of a tensor that have no graph."""


def is_used_later(run: Run, backward: Event, forwards: Sequence[Event]) -> bool:
    """Whether a graph is kept beyond its iteration, gone through after the loop, or given to a function unknown here.

    Args:
        run: The run of the backward pass.
        backward: A backward pass in a loop.
        forwards: The forward passes that its loss comes from.
    """
    loop = backward.context.loops[-1]
    if any(_is_kept(kept, loop, forwards) for kept in run.of(Act.KEEP, within=loop)):
        return True
    return _is_used_after(run, backward, forwards) or _is_given_away(run, backward, forwards)


def _is_kept(kept: Event, loop: Loop, forwards: Sequence[Event]) -> bool:
    """Whether something that hangs on the graph is stored where the next iteration finds it."""
    if kept.outlives is None or kept.context.loops.index(kept.outlives) > kept.context.loops.index(loop):
        return False
    if kept.value.graph is Graph.NO or kept.value.kind in _WITHOUT_GRAPH:
        return False
    if kept.how is Keeping.ATTRIBUTE and not _is_read(kept, loop):
        return False  # each iteration sets it anew
    return _hangs_on(kept.value, forwards)


def _is_read(kept: Event, loop: Loop) -> bool:
    """Whether an attribute is read before the iteration sets it, or outside of the loop, by whatever object's name."""
    owner, _, name = kept.target.rpartition(".")
    if owner != "self":
        return True  # an object that others may hold
    inside = {id(node) for node in walk(loop.node)}
    return kept.target in carried(loop) or any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        for node in walk(kept.module.tree)
    )


def _hangs_on(value: Value, forwards: Sequence[Event]) -> bool:
    parts = (value, *value.parts)
    return any(part.comes_from(made.result) for part in parts for made in forwards)


def _is_used_after(run: Run, backward: Event, forwards: Sequence[Event]) -> bool:
    """Whether a pass after the loop may go through it: one of a loss that no later forward pass has made."""
    loop = backward.context.loops[-1]
    later = [event for event in run.events[run.events.index(backward) + 1 :] if loop not in event.context.loops]
    fresh: list[Event] = []
    for event in later:
        if event.act is Act.FORWARD:
            fresh.append(event)
        is_pass = event.act in (Act.BACKWARD, Act.AUTOGRAD)
        if is_pass and (_hangs_on(event.value, forwards) or not _hangs_on(event.value, fresh)):
            return True
    return False


def _is_given_away(run: Run, backward: Event, forwards: Sequence[Event]) -> bool:
    """Whether a name that hangs on the graph is returned, or is an argument of a call of which nothing is known."""
    loop = backward.context.loops[-1]
    known = explained(run)
    names = _hanging(loop, [place_in(made, loop) for made in forwards])
    place = place_in(backward, loop)
    idle = {id(node.value) for node in walk(loop.node) if isinstance(node, ast.Expr)}
    for node in (*walk(loop.node), *_after(run, loop)):
        if isinstance(node, ast.Return | ast.Yield):
            if node.value is not None and _has(node.value, names):
                return True
            continue
        if not isinstance(node, ast.Call) or id(node) in known or _only_looks(node) or within(node, place):
            continue
        if (id(node) in idle or start_of(node) > end_of(place)) and _gets(node, names):
            return True
    return False


def _after(run: Run, loop: Loop) -> Iterator[ast.AST]:
    """What follows a loop in its function."""
    for node in walk(run.module.tree if loop.function is None else loop.function.node):
        if isinstance(node, ast.Call | ast.Return | ast.Yield) and start_of(node) > end_of(loop.node):
            yield node


def _only_looks(call: ast.Call) -> bool:
    """Whether a call does nothing with its arguments that outlives it; `update` may store them."""
    return is_harmless(call) and text_of(call.func).rpartition(".")[2] not in ("update", "append")


def place_in(event: Event, loop: Loop) -> ast.AST:
    """What in a loop's own text makes an event: its node itself, or the call that leads to it."""
    calls = (frame.call for frame in event.context.frames)
    return next((call for call in calls if call is not None and within(call, loop.node)), event.node)


def _hanging(loop: Loop, made: Sequence[ast.AST]) -> set[str]:
    """Names in a loop that are computed from what its forward passes give."""
    assigned = [node for node in walk(loop.node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    names: set[str] = set()
    for node in sorted(assigned, key=start_of):
        value = node.value
        if value is not None and (any(within(each, value) for each in made) or _reads(value, names)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(_names(targets))
    return names


def _names(targets: Sequence[ast.expr]) -> Iterator[str]:
    for target in targets:
        for node in walk(target):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield text_of(node)


def _reads(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression uses one of the names, but for what takes it off the graph at once."""
    if _is_off(value):
        return False
    return any(base_of(node) in names for node in walk(value) if isinstance(node, ast.Name | ast.Attribute))


def _is_off(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(attr="item" | "detach" | "tolist" | "numpy")):
            return True
        case ast.Call(func=ast.Name(id="float" | "int")):
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr="cpu" | "clone" | "mean" | "sum")):
            return _is_off(inner)
    return False


def _gets(call: ast.Call, names: set[str]) -> bool:
    """Whether a call is given such a thing; an object's own method is given what its attributes hold."""
    if isinstance(call.func, ast.Attribute) and _owns(text_of(call.func.value), names):
        return True
    return any(_has(given, names) for given in (*call.args, *(keyword.value for keyword in call.keywords)))


def _owns(text: str, names: set[str]) -> bool:
    return any(name.startswith(f"{text}.") for name in names)


def _has(given: ast.expr, names: set[str]) -> bool:
    """Whether an argument is what a name stands for, a part of it, computed from it or a display that holds it."""
    if isinstance(given, ast.Name | ast.Attribute):
        is_plain = isinstance(given, ast.Attribute) and given.attr in _PLAIN
        return not is_plain and (text_of(given) in names or _owns(text_of(given), names))
    if isinstance(given, ast.Lambda):
        return _reads(given.body, names)
    return any(_has(part, names) for part in _parts(given))


def _parts(given: ast.expr) -> Sequence[ast.expr]:
    """What an expression holds or is computed from; nothing of calls, which may take it off the graph."""
    match given:
        case ast.Starred(value=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return [inner]
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return [left, right]
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
    return []
