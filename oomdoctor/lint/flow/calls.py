"""What a call does: whose it is decides which of the other files says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.builtin import BUILTINS, call_builtin
from oomdoctor.lint.flow.classes import bases_of, find_method, kind_of_class
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.expressions import begins_with_import, evaluate
from oomdoctor.lint.flow.joining import sources
from oomdoctor.lint.flow.libraries import call_library, note_backward
from oomdoctor.lint.flow.methods import call_method, forward, loss
from oomdoctor.lint.flow.state import Given, State, text_of
from oomdoctor.lint.flow.values import UNKNOWN, Graph, Kind, Value

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Class, Function


def call(state: State, node: ast.Call) -> Value:
    """Evaluate a call: its arguments first, then what it does."""
    function = node.func
    if isinstance(function, ast.Attribute) and not begins_with_import(state, function):
        if _is_super(function.value):
            return _call_super(state, node, function.attr)
        owner = evaluate(state, function.value)
        return _call_attribute(state, node, owner, _given(state, node))
    callee = evaluate(state, function)
    return _call_value(state, node, callee, _given(state, node))


def _given(state: State, node: ast.Call) -> Given:
    positional = tuple([evaluate(state, argument) for argument in node.args])
    keywords = {keyword.arg or "**": evaluate(state, keyword.value) for keyword in node.keywords}
    return Given(positional, keywords)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _call_super(state: State, node: ast.Call, name: str) -> Value:
    given = _given(state, node)
    function = state.context.frames[-1].function if state.context.frames else None
    if function is None or function.class_ is None:
        return UNKNOWN
    for base in bases_of(function.class_):
        method = find_method(base, name)
        if method is not None:
            receiver = state.names.get("self")
            return state.follow(state, method, node, Given(given.positional, given.keywords, receiver))
    return Value(node=node)


def _call_attribute(state: State, node: ast.Call, owner: Value, given: Given) -> Value:
    function: ast.Attribute = node.func  # type: ignore[assignment]
    stored = state.names.get(text_of(function)) if isinstance(function.value, ast.Name | ast.Attribute) else None
    if stored is not None and stored.kind is not Kind.UNKNOWN:  # `self.model(x)`, `self.criterion(x, y)`
        return _call_value(state, node, stored, given)
    method = _own_method(owner, function.attr)
    if method is not None:
        return _call_own(state, node, owner, method, given)
    if is_import(owner):
        return call_library(state, node, f"{owner.library}.{function.attr}", given)
    closure = _closure(state, node, given)
    if closure is not None:
        state.follow(state, closure, None, Given())
    is_plain = isinstance(function.value, ast.Name | ast.Attribute)
    if is_plain and (owner.kind is Kind.UNKNOWN or owner.class_ is not None):
        callee = evaluate(state, function)  # the attribute of something unknown may itself be a model: `self.net(x)`
        if callee.kind in (Kind.MODEL, Kind.LOSS_FUNCTION, Kind.FUNCTION):
            return _call_value(state, node, callee, given)
    return call_method(state, node, owner, given)


def is_import(value: Value) -> bool:
    """Whether a value is something of a library itself, not what a call of it gave."""
    return value.library is not None and value.kind is Kind.UNKNOWN and not isinstance(value.node, ast.Call)


def _own_method(owner: Value, name: str) -> Function | None:
    """A method that the repository defines for the class of `owner`; `forward` is an event, not followed."""
    if owner.class_ is None or name in known.FORWARD_METHODS:
        return None
    return find_method(owner.class_, name)


def _call_own(state: State, node: ast.Call, owner: Value, method: Function, given: Given) -> Value:
    decorators = {text_of(decorator) for decorator in method.node.decorator_list if not isinstance(decorator, ast.Call)}
    is_static = "staticmethod" in decorators
    positional = given.positional
    if owner.kind is Kind.CLASS and not is_static and "classmethod" not in decorators and positional:
        return state.follow(state, method, node, Given(positional[1:], given.keywords, positional[0]))
    receiver = None if is_static else owner
    return state.follow(state, method, node, Given(positional, given.keywords, receiver))


def _closure(state: State, node: ast.Call, given: Given) -> Function | None:
    """The function that `optimizer.step(closure)` runs."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "step"):
        return None
    values = (*given.positional, *given.keywords.values())
    del state
    return next((value.function for value in values if value.function is not None), None)


def _call_value(state: State, node: ast.Call, callee: Value, given: Given) -> Value:
    if callee.function is not None:
        receiver = callee.receiver
        return state.follow(state, callee.function, node, Given(given.positional, given.keywords, receiver))
    if callee.kind is Kind.CLASS and callee.class_ is not None:
        return _made(node, callee.class_, given)
    if is_import(callee):
        return call_library(state, node, callee.library or "", given)
    return _call_by_kind(state, node, callee, given)


def _call_by_kind(state: State, node: ast.Call, callee: Value, given: Given) -> Value:
    if callee.kind is Kind.MODEL or callee.kind is Kind.ENGINE:
        return forward(state, node, callee, given)
    if callee.kind is Kind.LOSS_FUNCTION:
        return loss(state, node, given)
    if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
        return call_builtin(state, node, node.func.id, given)
    if _is_loss_scaler(node, given):
        return _scaled_step(state, node, given)
    return Value(node=node, made_from=sources((*given.positional, *given.keywords.values())))


def _is_loss_scaler(node: ast.Call, given: Given) -> bool:
    """The way of timm: `loss_scaler(loss, optimizer, ...)` makes the backward pass and the step."""
    return text_of(node.func).rpartition(".")[2] in ("loss_scaler", "_loss_scaler") and len(given.positional) > 1


def _scaled_step(state: State, node: ast.Call, given: Given) -> Value:
    note_backward(state, node, given.positional[0], managed="timm")
    state.note(Act.STEP, node, given.positional[1], call=node, managed="timm")
    return Value(node=node)


def _made(node: ast.Call, class_: Class, given: Given) -> Value:
    return Value(
        kind=kind_of_class(class_), graph=Graph.NO, node=node, class_=class_, made_from=sources(given.positional)
    )
