"""Events in one iteration of a loop: order, conditions, and the statements around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Guard, Loop, Run
from oomdoctor.lint.flow.state import base_of, text_of
from oomdoctor.lint.module import Module, walk


def conditions(guards: tuple[Guard, ...]) -> dict[str, bool]:
    """Conditions that hold or do not hold under these guards, taken apart: `not a`, `a and b`, `a is not None`.

    Returns:
        Whether it holds, by the text of each condition.
    """
    found: dict[str, bool] = {}
    for guard in guards:
        found.update(_parts(guard.test, holds=guard.holds))
    return found


def _parts(test: ast.expr, *, holds: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, holds=not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        for part in test.values:
            yield from _parts(part, holds=holds)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot | ast.NotEq):
        sign = "is" if isinstance(test.ops[0], ast.IsNot) else "=="
        yield f"{text_of(test.left)} {sign} {text_of(test.comparators[0])}", not holds
    else:
        yield text_of(test), holds


def exclude(first: Event, second: Event) -> bool:
    """Return whether a condition holds for one and not for the other: they never happen in one iteration."""
    one, other = conditions(first.context.guards), conditions(second.context.guards)
    return any(other.get(text, holds) is not holds for text, holds in one.items())


def implies(first: Event, second: Event, loop: Loop) -> bool:
    """Return whether `second` happens in every iteration of `loop` in which `first` does, as far as conditions tell."""
    needed = conditions(second.context.guards_in(loop))
    given = conditions(first.context.guards_in(loop))
    return all(given.get(text) is holds for text, holds in needed.items())


def shared_loop(first: Event, second: Event) -> Loop | None:
    """The innermost loop around both."""
    shared = None
    for one, other in zip(first.context.loops, second.context.loops, strict=False):
        if one is not other:
            break
        shared = one
    return shared


def node_beside(event: Event, other: Event, run: Run) -> tuple[ast.AST, Module]:
    """Return the event's node, or the call to it, in the innermost function that leads to both events."""
    depth = 0
    for one, another in zip(event.context.frames, other.context.frames, strict=False):
        if one.call is not another.call or one.function is not another.function:
            break
        depth += 1
    if depth == len(event.context.frames):
        return event.node, event.module
    call = event.context.frames[depth].call
    module = event.context.frames[depth - 1].function.module if depth else run.module
    return (event.node, event.module) if call is None else (call, module)


def within(inner: ast.AST, outer: ast.AST) -> bool:
    """Return whether one node's text lies in another's; both have to be of one file."""
    return start_of(outer) <= start_of(inner) and end_of(inner) <= end_of(outer)


def start_of(node: ast.AST) -> tuple[int, int]:
    """Return the position at which a node begins: line from 1, column in bytes from 0."""
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> tuple[int, int]:
    """Return the position at which a node ends, as `start_of` counts."""
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def stored_in(loop: Loop) -> frozenset[str]:
    """Names and dotted texts that the loop sets, its own variables among them."""
    return frozenset(text for node in walk(loop.node) if (text := _stored(node)) is not None)


def _stored(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return base_of(node)
    return None


def carried(loop: Loop) -> frozenset[str]:
    """Names and dotted texts that an iteration reads before it sets them: what the one before has left.

    What a nested function reads or sets counts where the function stands.
    """
    if not isinstance(loop.node, ast.For | ast.AsyncFor | ast.While):
        return frozenset()
    seen: set[str] = set()
    found: set[str] = set()
    for node in _in_order([loop.node]):
        stores, reads = _uses(node)
        found |= reads - seen
        seen |= stores
    return frozenset(found & stored_in(loop))


def _in_order(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """The parts of statements in the order in which they run: an `if` gives its test, then what is in it."""
    for statement in statements:
        if isinstance(statement, ast.For | ast.AsyncFor):
            yield from (statement.iter, statement.target)
        elif isinstance(statement, ast.If | ast.While):
            yield statement.test
        elif isinstance(statement, ast.With | ast.AsyncWith):
            yield from statement.items
        elif not isinstance(statement, ast.Try | ast.TryStar):
            yield statement
            continue
        for name in ("body", "handlers", "orelse", "finalbody"):
            for inner in getattr(statement, name, ()):
                yield from _in_order(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _uses(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a node sets, and those that it reads."""
    stores: set[str] = set()
    reads: set[str] = set()
    for inner in walk(node):
        text = _stored(inner)
        if text is not None:
            stores.add(text)
        elif isinstance(inner, ast.Name | ast.Attribute):
            reads.add(base_of(inner) or "")
        if isinstance(inner, ast.AugAssign):
            reads.add(base_of(inner.target) or "")
    return stores, reads


_HARMLESS: Final = frozenset(
    {
        "print", "log", "info", "debug", "warning", "write", "set_postfix", "set_description", "len", "int", "float",
        "str", "format", "round", "min", "max", "sum", "range", "enumerate", "zip", "isinstance", "append", "item",
        "parameters", "named_parameters", "time", "perf_counter", "add_scalar", "add_scalars", "is_available",
        "isfinite", "isnan", "isinf", "any", "all", "train", "eval", "step", "zero_grad", "clip_grad_norm_",
        "clip_grad_value_", "unscale_", "update", "get_last_lr", "synchronize", "mark_step", "chain", "list",
        "tuple", "getattr", "hasattr", "filter",
    }
)  # fmt: skip
"""Last parts of names of calls that make no backward pass and touch no gradient but as the events say."""

_LIBRARIES: Final = ("torch.", "numpy.", "math.", "logging.", "time.", "tqdm.", "wandb.", "os.", "random.")


def function_around(event: Event) -> ast.AST:
    """The function that an event lies in, or the file's own statements."""
    function = event.function
    return event.module.tree if function is None or function.module is not event.module else function.node


def statement_of(event: Event) -> ast.stmt | None:
    """The simple statement that an event stands in; None where it stands in the head of a loop or an `if`."""
    for node in walk(function_around(event)):
        if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return) and within(
            event.node, node
        ):
            return node
    return None


def is_used(event: Event) -> bool:
    """Return whether the result of the event's call is used."""
    statement = statement_of(event)
    return not (isinstance(statement, ast.Expr) and statement.value is event.node)


def explained_calls(*runs: Run) -> set[int]:
    """Calls of which it is known what they do to gradients: by `id` of their nodes.

    Those are events, calls that were followed, and calls of libraries that leave gradients alone; of a function that
    is imported from elsewhere nothing is known.
    """
    known: set[int] = set()
    for run in runs:
        for event in run.events:
            if event.action is not Action.CALL or event.name.startswith(_LIBRARIES):
                known.add(id(event.node))
            known.update(id(frame.call) for frame in event.context.frames)
    return known


def is_harmless(call: ast.Call) -> bool:
    """Return whether a call of this name makes no backward pass and touches no gradient but as events say."""
    return _last(call.func) in _HARMLESS


def in_same_call(first: Event, second: Event) -> bool:
    """Return whether both events lie in one run through one function."""
    one, other = first.context.frames, second.context.frames
    return (
        first.module is second.module
        and len(one) == len(other)
        and all(frame.call is another.call for frame, another in zip(one, other, strict=True))
    )


def calls_between(first: Event, second: Event, run: Run) -> Iterator[ast.Call]:
    """Calls after the first and before the second, of one function, that are no events and may do anything."""
    known = explained_calls(run)
    begin, end = end_of(first.node), start_of(second.node)
    for node in walk(function_around(first)):
        if not isinstance(node, ast.Call) or id(node) in known or is_harmless(node):
            continue
        if begin <= start_of(node) and end_of(node) <= end:
            yield node


def sets_gradients_between(first: Event, second: Event) -> bool:
    """Return whether a gradient is assigned by hand between two events: `p.grad = ...`."""
    begin, end = end_of(first.node), start_of(second.node)
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and begin <= start_of(node) <= end
        for node in walk(function_around(first))
    )


def _last(function: ast.expr) -> str:
    return text_of(function).rpartition(".")[2]
