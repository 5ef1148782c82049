"""Loops: what they iterate over, what counts them, and what their variables mean."""

from __future__ import annotations

import ast
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import UNKNOWN, Graph, Kind, Loop, Value
from oomdoctor.lint.flow.hints import guess
from oomdoctor.lint.flow.state import State, base_of, sources, text_of
from oomdoctor.lint.module import Function, walk

_MOST_WRAPPERS: Final = 6


def enter_for(state: State, node: ast.For | ast.AsyncFor, iterated: Value) -> Loop:
    """Enter a `for`: its variables are bound, and the context has it.

    Args:
        state: The run.
        node: The statement.
        iterated: Value of the loop's expression.
    """
    return _enter(state, node, node.target, node.iter, iterated)


def enter_comprehension(
    state: State,
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
    generator: ast.comprehension,
    iterated: Value,
) -> Loop:
    """Enter one `for` of a comprehension."""
    return _enter(state, node, generator.target, generator.iter, iterated)


def enter_while(state: State, node: ast.While) -> Loop:
    """Enter a `while`."""
    loop = Loop(node=node, over_batches=_draws(node.body), function=_function(state), values=dict(state.names))
    return _add(state, loop)


def _enter(
    state: State,
    node: ast.For | ast.AsyncFor | ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
    target: ast.expr,
    iterable: ast.expr,
    iterated: Value,
) -> Loop:
    inner, counter, start = _unwrapped(iterable, target)
    value = _value_of(state, inner, iterated if inner is iterable else None)
    body = node.body if isinstance(node, ast.For | ast.AsyncFor) else []
    loop = Loop(
        node=node,
        iterates=value,
        counter=counter,
        start=start,
        over_batches=_is_over_batches(state, inner, value, body),
        function=_function(state),
        values=dict(state.names),
    )
    _add(state, loop)
    _bind_target(state, target, value)
    return loop


def _add(state: State, loop: Loop) -> Loop:
    state.loops.append(loop)
    state.context = state.context.replace(loops=(*state.context.loops, loop))
    return loop


def _function(state: State) -> Function | None:
    return state.context.frames[-1].function if state.context.frames else None


def _unwrapped(iterable: ast.expr, target: ast.expr) -> tuple[ast.expr, str | None, int | None]:
    """Return the iterable inside `enumerate` and its like, the variable that counts, and its first value."""
    counter, start = None, None
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(iterable, ast.Call) or not iterable.args:
            break
        name = _last_name(iterable.func)
        if name == "enumerate":
            counter, target = _first_and_rest(target)
            start = _number(_argument(iterable, 1, "start"), default=0)
        elif name in ("range", "trange"):
            first = iterable.args[0] if len(iterable.args) > 1 else None
            return iterable, target.id if isinstance(target, ast.Name) else None, _number(first, default=0)
        elif name not in known.ITERATION_WRAPPERS:
            break
        if name == "log_every" or (name == "track" and not iterable.args):
            break
        iterable = iterable.args[0]
    if isinstance(iterable, ast.Call) and _last_name(iterable.func) == "log_every":
        iterable = iterable.args[0] if iterable.args else iterable
    return iterable, counter, start


def _first_and_rest(target: ast.expr) -> tuple[str | None, ast.expr]:
    match target:
        case ast.Tuple(elts=[ast.Name(id=counter), rest]):
            return counter, rest
    return None, target


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if len(call.args) > place:
        return call.args[place]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _number(node: ast.expr | None, *, default: int) -> int | None:
    if node is None:
        return default
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _value_of(state: State, node: ast.expr, evaluated: Value | None) -> Value:
    """Return the value of an iterable, which has been evaluated already as part of the loop's expression."""
    if evaluated is not None and evaluated is not UNKNOWN:
        return evaluated
    text = text_of(node)
    return state.names.get(text) or Value(
        node=node, kind=Kind.LOADER if known.IS_LOADER_NAME.search(text) else Kind.UNKNOWN
    )


def _is_over_batches(state: State, node: ast.expr, value: Value, body: list[ast.stmt]) -> bool:
    if value.kind is Kind.LOADER:
        return True
    if isinstance(node, ast.Call):
        if _last_name(node.func) in ("range", "trange"):
            return _counts_batches(state, node) or _draws(body)
        if _last_name(node.func) == "zip":
            return any(_value_of(state, argument, None).kind is Kind.LOADER for argument in node.args)
        return bool(known.IS_LOADER_NAME.search(text_of(node.func)))
    base = base_of(node)
    return base is not None and bool(known.IS_LOADER_NAME.search(base))


def _counts_batches(state: State, node: ast.Call) -> bool:
    """Return whether an iterable is `range(len(loader))` or `range(0, len(data), batch_size)`."""
    if not node.args:
        return False
    inner = node.args[-1]
    if isinstance(inner, ast.Call) and _last_name(inner.func) == "len" and inner.args:
        return _value_of(state, inner.args[0], None).kind is Kind.LOADER
    return len(node.args) == 3 and "batch" in text_of(inner).lower()  # noqa: PLR2004 - start, stop and step


def _draws(body: list[ast.stmt]) -> bool:
    """Return whether a body's own statements draw a batch, as `next(iterator)` or `get_batch(...)` does."""
    return any(
        isinstance(statement, ast.Assign) and _is_draw(statement.value)
        for outer in body
        for statement in (outer, *(outer.body if isinstance(outer, ast.Try | ast.With) else []))
    )


def _is_draw(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = _last_name(value.func)
    return (name == "next" and bool(value.args)) or name in ("get_batch", "next_batch", "sample_batch", "__next__")


def _bind_target(state: State, target: ast.expr, iterated: Value) -> None:
    """Bind a loop's variables: elements of a batch, or of a list that is written out."""
    kind, graph = _element(iterated)
    for name in walk(target):
        if isinstance(name, ast.Name):
            known_as = guess(name.id, state.uses(name.id)) if kind is Kind.UNKNOWN else kind
            state.bind(name.id, Value(kind=known_as, graph=graph, made_from=sources((iterated,))))


def _element(iterated: Value) -> tuple[Kind, Graph]:
    if iterated.kind is Kind.LOADER:
        return Kind.UNKNOWN, Graph.NO  # a batch: it may hold tensors, but no graph
    kinds = {part.kind for part in iterated.parts}
    if len(kinds) == 1:
        return kinds.pop(), Graph.UNKNOWN
    if iterated.kind is Kind.CONTAINER and not iterated.parts:
        return Kind.UNKNOWN, iterated.graph
    return Kind.UNKNOWN, Graph.UNKNOWN
