"""What an object's attributes are, by what its class's methods assign to them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.classes import bases_of
from oomdoctor.lint.flow.expressions import evaluate
from oomdoctor.lint.flow.guessing import guess
from oomdoctor.lint.flow.state import Names, State, text_of
from oomdoctor.lint.flow.values import Graph, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Class, Function

_MOST_BASES: Final = 6


def fields_of(state: State, class_: Class, depth: int = 0) -> Names:
    """Meaning of `self.x` for each `x` that the class or its bases in the repository assign; `__init__` comes first.

    Args:
        state: The run that asks; nothing is noted in it.
        class_: The class.
        depth: How many classes led here.
    """
    known_fields = state.shared.fields.get(class_)
    if known_fields is not None:
        return known_fields
    state.shared.fields[class_] = found = {}
    if depth <= _MOST_BASES:
        for base in bases_of(class_):
            found.update(fields_of(state, base, depth + 1))
    methods = sorted(class_.methods.values(), key=lambda method: method.name != "__init__")
    for method in methods:
        _add_fields(state, method, found)
    return found


def _add_fields(state: State, method: Function, found: Names) -> None:
    is_constructor = method.name == "__init__"
    assignments = [
        (assignment, target)
        for assignment in _assignments(method.node.body)
        for target in assignment.targets
        if _is_wanted(target, found, is_constructor=is_constructor)
    ]
    if assignments:
        quiet = _quiet(state, method)
        for assignment, target in assignments:
            _add_target(quiet, target, evaluate(quiet, assignment.value), found)


def _quiet(state: State, method: Function) -> State:
    """A run of the method whose events nobody asks for."""
    quiet = State(
        module=method.module,
        follow=_not_followed,
        call=state.call,
        names=dict(state.shared.globals.get(method.module, {})),
        shared=state.shared,
    )
    for argument in method.node.args.args:
        quiet.names[argument.arg] = Value(kind=guess(argument.arg, state.uses(argument.arg)))
    return quiet


def _is_wanted(target: ast.expr, found: Names, *, is_constructor: bool) -> bool:
    """Whether an assignment can say something new; of local names only a constructor's lead to attributes often."""
    if isinstance(target, ast.Tuple):
        return any(_is_wanted(inner, found, is_constructor=is_constructor) for inner in target.elts)
    if isinstance(target, ast.Attribute):
        before = found.get(text_of(target))
        return before is None or before.kind in (Kind.UNKNOWN, Kind.NONE)
    return is_constructor and isinstance(target, ast.Name)


def _not_followed(state: State, function: Function, call: ast.Call | None, given: object) -> Value:
    del state, function, given
    return Value(node=call)


def _add_target(state: State, target: ast.expr, value: Value, found: Names) -> None:
    if isinstance(target, ast.Tuple):
        parts = value.parts if len(value.parts) == len(target.elts) else (Value(),) * len(target.elts)
        for inner, part in zip(target.elts, parts, strict=True):
            _add_target(state, inner, part, found)
    elif isinstance(target, ast.Name):
        state.names[target.id] = value
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        text = text_of(target)
        before = found.get(text)
        if before is None or before.kind in (Kind.UNKNOWN, Kind.NONE):
            found[text] = _recognised(state, text, value)
        state.names[text] = found[text]


def _recognised(state: State, text: str, value: Value) -> Value:
    """A field keeps no graph from one method to the next as far as anybody knows."""
    kind = guess(text, state.uses(text)) if value.kind is Kind.UNKNOWN else value.kind
    if kind in (Kind.NUMBER, Kind.NONE):
        # Whatever the constructor begins with, other methods may set.
        guessed = guess(text, state.uses(text))
        kind = guessed if guessed is not Kind.UNKNOWN else kind
    return value.but(kind=kind, graph=Graph.UNKNOWN if kind is Kind.TENSOR else value.graph)


def _assignments(body: list[ast.stmt]) -> Iterator[ast.Assign]:
    """Assignments of a body at whatever depth, but not those of functions in it."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield statement
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield ast.Assign(targets=[statement.target], value=statement.value)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _assignments(getattr(statement, name, []))
