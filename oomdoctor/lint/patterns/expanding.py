"""Conditions with names and calls replaced by what they stand for."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.lint.code.functions import Class, Function
    from oomdoctor.lint.flow.context import Frame

_DEEPEST: Final = 6
_MOST_NODES: Final = 120
"""No condition that people write has as many parts; what grows beyond is left as it is."""


def is_small(node: ast.expr) -> bool:
    """Whether an expression is of a size that people write, so that it is safe to go down into it."""
    return len(walk(node)) <= _MOST_NODES


def expanded(test: ast.expr, meanings: Mapping[str, ast.expr], class_: Class | None) -> ast.expr:
    """A condition in which names that stand for an expression are that expression.

    Args:
        test: The condition; it stays as it is.
        meanings: Expressions by name or dotted text.
        class_: The class in one of whose methods it is tested, so that `self.should_step(i)` can be looked into.
    """
    return _Expander(meanings, class_).visit(copy.deepcopy(test))  # type: ignore[no-any-return]


def lifted(test: ast.expr, frames: Sequence[Frame]) -> ast.expr:
    """A condition of a function in the words of its callers: parameters are what the calls give.

    Args:
        test: The condition.
        frames: The calls that lead to it, outermost first.
    """
    for frame in reversed(frames):
        if frame.call is not None and is_small(frame.call) and is_small(test):
            given = arguments(frame.function, frame.call)
            test = _Replacer(given).visit(copy.deepcopy(test))
    return test


def arguments(function: Function, call: ast.Call) -> dict[str, ast.expr]:
    """What a call gives to each parameter that is not left out; for a method, without `self`."""
    parameters = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
    if function.class_ is not None and parameters and parameters[0] in ("self", "cls"):
        parameters = parameters[1:]
    given = dict(zip(parameters, call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
    return given


class _Replacer(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.given.get(node.id, node)


class _Expander(ast.NodeTransformer):
    """Puts what names and calls stand for in their place, again and again."""

    def __init__(self, meanings: Mapping[str, ast.expr], class_: Class | None) -> None:
        self.meanings = meanings
        self.class_ = class_
        self.depth = 0
        self.nodes = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._replaced(node, self.meanings.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        meaning = self.meanings.get(text_of(node))
        if meaning is None:
            return node
        return self._replaced(node, meaning)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        returned = self._returned(node)
        if returned is not None:
            return self._replaced(node, returned)
        return self.generic_visit(node)  # type: ignore[return-value]

    def _replaced(self, node: ast.expr, meaning: ast.expr | None) -> ast.expr:
        if meaning is None or self.depth >= _DEEPEST or not is_small(meaning):
            return node
        self.nodes += len(walk(meaning))
        if self.nodes > _MOST_NODES:
            return node
        self.depth += 1
        replaced: ast.expr = self.visit(copy.deepcopy(meaning))
        self.depth -= 1
        return replaced

    def _returned(self, call: ast.Call) -> ast.expr | None:
        """What a method of one `return` gives, in the words of its caller."""
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                method = self.class_.methods.get(name) if self.class_ is not None else None
            case ast.Name(id=name) if self.class_ is None:
                return None
            case _:
                return None
        body = [] if method is None else [line for line in method.node.body if not isinstance(line, ast.Expr)]
        if method is None or len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        if not is_small(body[0].value) or not is_small(call):
            return None
        return _Replacer(arguments(method, call)).visit(copy.deepcopy(body[0].value))  # type: ignore[no-any-return]
