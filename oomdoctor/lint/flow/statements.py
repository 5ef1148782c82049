"""Statements in order: names change, branches part and join, loops and context managers are entered."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from oomdoctor.lint.flow.assignment import assign, assign_in_place, forget
from oomdoctor.lint.flow.events import UNKNOWN, GradMode, Graph, Guard, Kind, TryBlock, Value, With
from oomdoctor.lint.flow.expressions import evaluate
from oomdoctor.lint.flow.libraries import grad_mode_of_manager, manager_name
from oomdoctor.lint.flow.loops import enter_for, enter_while
from oomdoctor.lint.flow.state import Names, State, join_names

_NAMES_A_STATEMENT: Final = 40


def execute(state: State, body: list[ast.stmt]) -> str | None:
    """Run statements.

    Returns:
        `continue`, `break`, `return` or `raise` where the body always ends so; None where it may go on.
    """
    for statement in body:
        state.budget -= 1
        if state.budget <= 0:
            return None
        executor = _EXECUTORS.get(statement.__class__)
        left = None if executor is None else executor(state, statement)
        if left is not None:
            return left
    return None


def _expression(state: State, node: ast.Expr) -> None:
    evaluate(state, node.value)
    _enter_by_stack(state, node.value)


def _assign(state: State, node: ast.Assign) -> None:
    value = evaluate(state, node.value)
    _enter_by_stack(state, node.value)
    for target in node.targets:
        assign(state, node, target, value)


def _assign_annotated(state: State, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(state, node, node.target, evaluate(state, node.value))


def _assign_in_place(state: State, node: ast.AugAssign) -> None:
    assign_in_place(state, node, evaluate(state, node.value))


def _delete(state: State, node: ast.Delete) -> None:
    for target in node.targets:
        forget(state, node, target)


def _return(state: State, node: ast.Return) -> str:
    if node.value is not None:
        state.returned.append(evaluate(state, node.value))
    return "return"


def _raise(state: State, node: ast.Raise) -> str:
    if node.exc is not None:
        evaluate(state, node.exc)
    return "raise"


def _leave(_state: State, node: ast.Continue | ast.Break) -> str:
    return "continue" if isinstance(node, ast.Continue) else "break"


def _assert(state: State, node: ast.Assert) -> None:
    evaluate(state, node.test)


def _define(state: State, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """A function in a body: the one that the survey of the file found there."""
    own = next((function for function in state.module.functions if function.node is node), None)
    if own is not None:
        state.names[node.name] = Value(kind=Kind.FUNCTION, graph=Graph.NO, function=own)


def _define_class(state: State, node: ast.ClassDef) -> None:
    own = state.module.classes.get(node.name)
    if own is not None and own.node is node:
        state.names[node.name] = Value(kind=Kind.CLASS, graph=Graph.NO, class_=own)


# --- branches --------------------------------------------------------------------------------------------------------


def _if(state: State, node: ast.If) -> str | None:
    evaluate(state, node.test)
    before, names = state.context, state.names
    left, after = _branch(state, node.body, Guard(node.test, holds=True, values=names, depth=len(before.loops)))
    gradients, state.names, state.context = state.context.gradients, names, before
    other_left, other_after = _branch(
        state, node.orelse, Guard(node.test, holds=False, values=names, depth=len(before.loops))
    )
    if left or other_left or gradients is state.context.gradients:
        gradients = state.context.gradients if left else gradients
    else:
        gradients = GradMode.UNKNOWN
    before = state.context = before.replace(gradients=gradients)
    if left and other_left:
        state.names = after
        return left if left == other_left else "return"
    if left or other_left:
        state.names = other_after if left else after
        guard = Guard(node.test, not left, names, left or other_left, len(before.loops))
        state.context = before.replace(guards=(*before.guards, guard))
        return None
    state.names = _joined_branches(state, after, other_after)
    return None


def _joined_branches(state: State, first: Names, second: Names) -> Names:
    """Join the names of two branches; the time grows with the number of names, so it is charged as statements."""
    state.budget -= len(first) // _NAMES_A_STATEMENT
    return join_names(first, second)


def _branch(state: State, body: list[ast.stmt], guard: Guard) -> tuple[str | None, Names]:
    """Run one branch with what names mean now; they mean the same again in the other one, autograd's mode may not."""
    if not body:
        return None, state.names
    before = state.context
    state.names = dict(state.names)
    state.context = before.replace(guards=(*before.guards, guard))
    left = execute(state, body)
    state.context = before.replace(gradients=state.context.gradients)
    return left, state.names


def _match(state: State, node: ast.Match) -> str | None:
    evaluate(state, node.subject)
    names, after, before = state.names, state.names, state.context
    for case in node.cases:
        state.names = dict(names)
        guard = Guard(node.subject, holds=True, values=names, depth=len(before.loops))
        state.context = before.replace(guards=(*before.guards, guard))
        left = execute(state, case.body)
        after = after if left else _joined_branches(state, after, state.names)
    state.names, state.context = after, before
    return None


# --- loops -----------------------------------------------------------------------------------------------------------


def _for(state: State, node: ast.For | ast.AsyncFor) -> None:
    iterated = evaluate(state, node.iter)
    before, names = state.context, dict(state.names)
    enter_for(state, node, iterated)
    execute(state, node.body)
    state.context, state.names = before, _joined_branches(state, names, state.names)
    execute(state, node.orelse)


def _while(state: State, node: ast.While) -> None:
    before, names = state.context, dict(state.names)
    enter_while(state, node)
    evaluate(state, node.test)
    execute(state, node.body)
    state.context, state.names = before, _joined_branches(state, names, state.names)
    execute(state, node.orelse)


# --- context managers and handlers -----------------------------------------------------------------------------------


def _with(state: State, node: ast.With | ast.AsyncWith) -> str | None:
    before = state.context
    for item in node.items:
        _enter(state, node, item)
    left = execute(state, node.body)
    state.context = before
    return left


def _enter(state: State, node: ast.stmt, item: ast.withitem) -> None:
    value = evaluate(state, item.context_expr)
    manager = _enter_manager(state, item.context_expr)
    if item.optional_vars is not None:
        is_scaled = isinstance(manager, ast.Call) and manager_name(manager, state.module).endswith("scale_loss")
        inner = evaluate(state, manager.args[0]) if is_scaled and manager.args else value  # type: ignore[attr-defined]
        assign(state, node, item.optional_vars, inner)


def _enter_manager(state: State, node: ast.expr) -> ast.expr:
    """Change the circumstances as a context manager does, and return the expression that makes it."""
    manager = _manager(state, node)
    context = state.context
    gradients = grad_mode_of_manager(manager, state.module)
    names = [_with_of(state, expression) for expression in _choices(manager)]
    state.context = context.replace(
        withs=(*context.withs, *names),
        gradients=context.gradients if gradients is None else gradients,
        managed="accelerate" if any(entry.name == ".accumulate" for entry in names) else context.managed,
    )
    return manager


def _enter_by_stack(state: State, node: ast.expr) -> None:
    """Enter the manager of `stack.enter_context(manager)`; it holds until the `with` around the statement ends."""
    call = node.value if isinstance(node, ast.Await) else node
    if (
        isinstance(call, ast.Call)
        and len(call.args) == 1
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("enter_context", "enter_async_context")
    ):
        _enter_manager(state, call.args[0])


def _manager(state: State, node: ast.expr) -> ast.expr:
    """The expression behind a name: `context = torch.no_grad()` before `with context:`."""
    if isinstance(node, ast.Name):
        value = state.names.get(node.id, UNKNOWN)
        if isinstance(value.node, ast.Call | ast.IfExp):
            return value.node
    return node


def _choices(node: ast.expr) -> list[ast.expr]:
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _with_of(state: State, node: ast.expr) -> With:
    name = manager_name(node, state.module)
    function = node.func if isinstance(node, ast.Call) else node
    owner = UNKNOWN
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name | ast.Attribute):
        owner = evaluate(state, function.value)
    return With(node, name, owner)


def _try(state: State, node: ast.Try | ast.TryStar) -> str | None:
    start = dict(state.names)
    left = _part(state, node, node.body, None, "body")
    after = state.names
    ends = []
    for handler in node.handlers:
        state.names = _joined_branches(state, start, after)
        if handler.name is not None:
            state.names[handler.name] = Value(graph=Graph.NO)
        ends.append((_part(state, node, handler.body, handler, "handler"), state.names))
    state.names = after
    left = left or _part(state, node, node.orelse, None, "else")
    for end, names in ends:
        if end is None:
            state.names = _joined_branches(state, state.names, names)
    left = left if all(end is not None for end, _ in ends) else None
    return _part(state, node, node.finalbody, None, "finally") or left


def _part(
    state: State, node: ast.Try | ast.TryStar, body: list[ast.stmt], handler: ast.ExceptHandler | None, part: str
) -> str | None:
    before = state.context
    state.context = before.replace(attempts=(*before.attempts, TryBlock(node, handler, part)))
    state.names = dict(state.names)
    left = execute(state, body)
    gradients = state.context.gradients
    state.context = before if gradients is before.gradients else before.replace(gradients=gradients)
    return left


_EXECUTORS: Final[Mapping[type[ast.stmt], Callable[[State, Any], str | None]]] = MappingProxyType(
    {
        ast.Expr: _expression,
        ast.Assign: _assign,
        ast.AnnAssign: _assign_annotated,
        ast.AugAssign: _assign_in_place,
        ast.Delete: _delete,
        ast.Return: _return,
        ast.Raise: _raise,
        ast.Continue: _leave,
        ast.Break: _leave,
        ast.Assert: _assert,
        ast.FunctionDef: _define,
        ast.AsyncFunctionDef: _define,
        ast.ClassDef: _define_class,
        ast.If: _if,
        ast.Match: _match,
        ast.For: _for,
        ast.AsyncFor: _for,
        ast.While: _while,
        ast.With: _with,
        ast.AsyncWith: _with,
        ast.Try: _try,
        ast.TryStar: _try,
    }
)
