"""Later uses of a graph: by another backward pass, after the loop, or where nobody can see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Graph, Keeping, Kind, Loop, Run, Value
from oomdoctor.lint.flow.libraries import BUILTINS
from oomdoctor.lint.flow.state import base_of, text_of
from oomdoctor.lint.module import Module, own_nodes, targets_of, walk
from oomdoctor.lint.patterns.iterations import carried, end_of, explained_calls, is_harmless, start_of, within
from oomdoctor.lint.patterns.keeping import Kept

_WITHOUT_GRAPH: Final = frozenset({Kind.NUMBER, Kind.ARRAY, Kind.NONE})
_PLAIN: Final = frozenset({"data", "shape", "device", "dtype", "ndim", "requires_grad"})
"""Attributes of a tensor that have no graph."""


def is_used_later(run: Run, backward: Event, forwards: Sequence[Event]) -> bool:
    """Return whether a graph is kept beyond its iteration, used after the loop, or given to an unknown function.

    Args:
        run: The run of the backward pass.
        backward: A backward pass in a loop.
        forwards: The forward passes that its loss comes from.
    """
    loop = backward.context.loops[-1]
    if any(_is_kept(kept, loop, forwards) for kept in run.of(Action.KEEP, within=loop)):
        return True
    return _is_used_after(run, backward, forwards) or _escapes(run, backward, forwards)


def _is_kept(kept: Event, loop: Loop, forwards: Sequence[Event]) -> bool:
    """Return whether something that hangs on the graph is stored where the next iteration finds it."""
    if kept.outlives is None or kept.context.loops.index(kept.outlives) > kept.context.loops.index(loop):
        return False
    if kept.value.graph is Graph.NO or kept.value.kind in _WITHOUT_GRAPH:
        return False
    if kept.how is Keeping.ATTRIBUTE and not _is_read(kept, loop):
        return False  # each iteration sets it anew
    return _hangs_on(kept.value, forwards)


def _is_read(kept: Event, loop: Loop) -> bool:
    """Return whether an attribute is read before the iteration sets it, or outside of the loop, of any object."""
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
    """Return whether a pass after the loop may use the graph: a loss that no later forward pass has made."""
    loop = backward.context.loops[-1]
    later = [event for event in run.events[run.events.index(backward) + 1 :] if loop not in event.context.loops]
    fresh: list[Event] = []
    for event in later:
        if event.action is Action.FORWARD:
            fresh.append(event)
        is_pass = event.action in (Action.BACKWARD, Action.AUTOGRAD)
        if is_pass and (_hangs_on(event.value, forwards) or not _hangs_on(event.value, fresh)):
            return True
    return False


def _escapes(run: Run, backward: Event, forwards: Sequence[Event]) -> bool:
    """Return whether a name that hangs on the graph is returned, or is an argument of an unknown call."""
    loop = backward.context.loops[-1]
    known = explained_calls(run)
    names = _hanging(loop, [node_in_loop(made, loop) for made in forwards])
    place = node_in_loop(backward, loop)
    idle = {id(node.value) for node in walk(loop.node) if isinstance(node, ast.Expr)}
    for node in (*walk(loop.node), *_after(run, loop)):
        if isinstance(node, ast.Return | ast.Yield):
            if node.value is not None and _has(node.value, names):
                return True
            continue
        if not isinstance(node, ast.Call) or id(node) in known or _keeps_no_argument(node) or within(node, place):
            continue
        if (id(node) in idle or start_of(node) > end_of(place)) and _is_given_graph(node, names):
            return True
    return False


def _after(run: Run, loop: Loop) -> Iterator[ast.AST]:
    """Yield the nodes that follow a loop in its function."""
    for node in walk(run.module.tree if loop.function is None else loop.function.node):
        if isinstance(node, ast.Call | ast.Return | ast.Yield) and start_of(node) > end_of(loop.node):
            yield node


def _keeps_no_argument(call: ast.Call) -> bool:
    """Return whether a call keeps none of its arguments; `update` may store them."""
    return is_harmless(call) and text_of(call.func).rpartition(".")[2] not in ("update", "append")


def node_in_loop(event: Event, loop: Loop) -> ast.AST:
    """Return the node in a loop's own text that makes an event: its own, or the call that leads to it."""
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
    """Return whether an expression uses one of the names, but for what detaches it at once."""
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


def _is_given_graph(call: ast.Call, names: set[str]) -> bool:
    """Return whether a call's argument hangs on the graph; an object's own method is given its attributes."""
    if isinstance(call.func, ast.Attribute) and _owns(text_of(call.func.value), names):
        return True
    return any(_has(given, names) for given in (*call.args, *(keyword.value for keyword in call.keywords)))


def _owns(text: str, names: set[str]) -> bool:
    return any(name.startswith(f"{text}.") for name in names)


def _has(given: ast.expr, names: set[str]) -> bool:
    """Return whether an argument is a name's value, a part of it, computed from it or a display that holds it."""
    if isinstance(given, ast.Name | ast.Attribute):
        is_plain = isinstance(given, ast.Attribute) and given.attr in _PLAIN
        return not is_plain and (text_of(given) in names or _owns(text_of(given), names))
    if isinstance(given, ast.Lambda):
        return _reads(given.body, names)
    return any(_has(part, names) for part in _parts(given))


def _parts(given: ast.expr) -> Sequence[ast.expr]:
    """Return the operands and elements of an expression; nothing of calls, which may detach them."""
    match given:
        case ast.Starred(value=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return [inner]
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return [left, right]
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
    return []


_LIBRARIES: Final = (
    "torch.",
    "numpy.",
    "math.",
    "statistics.",
    "json.",
    "matplotlib.",
    "pandas.",
    "scipy.",
    "sklearn.",
)
_GRAPHLESS: Final = frozenset({".item", ".detach", "len", "float", ".numpy", ".tolist", ".argmax", "print"})
"""Functions and methods that bring no graph along; `x.float()` does, while `float(x)` does not."""


def is_trained_on(kept: Kept) -> bool:
    """Return whether the sum or the container, not only the value added to it, leads to a backward pass."""
    event = kept.event
    passes = [other.value for other in kept.run.of(Action.BACKWARD, Action.AUTOGRAD)]
    if any(value.comes_from(whole) for value in passes for whole in _wholes_of(event)):
        return True
    return not own_backward(kept) and any(value.comes_from(event.value) for value in passes)


def _wholes_of(event: Event) -> Iterator[Value]:
    """Yield the sum or container before the event and, where that is known, after it."""
    if event.target_value.identity > 0:
        yield event.target_value
    if event.how is Keeping.SUM and isinstance(event.node, ast.Assign):
        yield event.value


def own_backward(kept: Kept) -> bool:
    """Return whether the value, or a loss of the same forward passes, gets a backward pass in the iteration."""
    value, forwards = kept.event.value, kept.forwards()
    within = [event.value for event in kept.run.of(Action.BACKWARD, Action.AUTOGRAD, within=kept.loop)]
    if any(value.comes_from(other) or other.comes_from(value) for other in within if other.identity > 0):
        return True
    return bool(forwards) and all(any(other.comes_from(made.result) for other in within) for made in forwards)


def is_read_back(kept: Kept) -> bool:
    """Return whether a list's elements are read in the loop that fills it: a later loss may use an earlier graph.

    Passing the list to a function whose body nobody here sees counts too: it may make the backward pass.
    """
    is_meter = kept.event.target.endswith(("']", '"]'))  # a mapping's entry by name: its others are others
    if kept.event.how not in (Keeping.APPEND, Keeping.ITEM) or is_meter:
        return False
    name, own = kept.event.target.partition("[")[0], {id(node) for node in walk(kept.event.node)}
    return any(_reads_elements(node, name) for node in own_nodes(kept.loop.node) if id(node) not in own)


def _reads_elements(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id=base), ctx=ast.Load()) if base == name:
            return True
        case ast.Call(func=ast.Name(id=function), args=arguments) if function not in _GRAPHLESS:
            return any(isinstance(argument, ast.Name) and argument.id == name for argument in arguments)
    return False


def is_passed_on(kept: Kept) -> bool:
    """Return whether the kept value is passed to a function of the user's, which may train on it."""
    function, name = kept.loop.function, kept.event.target.partition("[")[0]
    if function is None or "." in name:
        return False
    return any(_is_passed(node, name, function.module) for node in own_nodes(function.node))


def _is_passed(node: ast.AST, name: str, module: Module) -> bool:
    if not isinstance(node, ast.Call) or not any(isinstance(each, ast.Name) and each.id == name for each in node.args):
        return False
    called = module.qualified(node.func) or _last(node)
    return not called.startswith((".", *_LIBRARIES)) and called not in BUILTINS


def is_returned(kept: Kept) -> bool:
    """Return whether the loop's function returns something made of the whole, for its callers to train on."""
    function = kept.loop.function
    if function is None:
        return False
    names = {kept.event.target.partition("[")[0]}
    for node in sorted(_statements(function.node), key=lambda node: node.lineno):
        if isinstance(node, ast.Assign) and _mentions(node.value, names):
            names.update(base for base in map(base_of, targets_of(node)) if base is not None and "." not in base)
    returned = (node.value for node in _statements(function.node) if isinstance(node, ast.Return))
    return any(value is not None and _mentions(value, names) for value in returned)


def _statements(function: ast.AST) -> list[ast.stmt]:
    return [node for node in own_nodes(function) if isinstance(node, ast.stmt)]


def _mentions(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression may take a graph from one of these names: `x.item()` and `len(x)` take none."""
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Name) and inner.id in names:
            return True
        if not isinstance(inner, ast.Call) or _last(inner) not in _GRAPHLESS:
            waiting += ast.iter_child_nodes(inner)
    return False


def _last(call: ast.Call) -> str:
    function = call.func
    return f".{function.attr}" if isinstance(function, ast.Attribute) else getattr(function, "id", "")
