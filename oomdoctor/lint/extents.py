"""What of a piece of code is pointed at: all of an expression, and the head of a statement that has others in it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Function, Module

Extent = tuple[tuple[int, int], tuple[int, int]]
"""Where it begins and where it ends, as a line from 1 and a column in UTF-8 bytes from 0."""


def extent(node: ast.AST) -> Extent:
    """What to point at for a node."""
    start = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
    head = _end(node) if _has_statements(node) else None
    end = head or (getattr(node, "end_lineno", None) or start[0], getattr(node, "end_col_offset", None) or start[1])
    return start, max(start, end)


def enclosing(module: Module, node: ast.AST) -> str | None:
    """The qualified name of the function that a node lies in; None at the top level."""
    line = getattr(node, "lineno", 1)
    around = [function for function in module.functions if _covers(function, line)]
    return qualified(around[-1]) if around else None


def qualified(function: Function) -> str:
    """A function's name with those of the class and the function that it is defined in."""
    names = [function.name, function.class_.name] if function.class_ else [function.name]
    if function.parent is not None:
        names.append(qualified(function.parent))
    return ".".join(reversed(names))


def _covers(function: Function, line: int) -> bool:
    return function.node.lineno <= line <= (function.node.end_lineno or function.node.lineno)


def _has_statements(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return isinstance(body, list) and isinstance(node, ast.stmt | ast.ExceptHandler)


def _end(node: ast.AST) -> tuple[int, int]:
    """Where the last expression in a statement's head ends; its first word and its name where it has none."""
    ends = [(child.end_lineno or child.lineno, child.end_col_offset or 0) for child in _head(node)]
    name = getattr(node, "name", None)
    words = _WORDS.get(type(node), "") + (f" {name}" if name else "")
    word = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + len(words.encode()))
    return max([word, *ends])


def _head(node: ast.AST) -> Iterator[ast.expr | ast.arg]:
    for name, value in ast.iter_fields(node):
        if name in _BODIES:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.withitem):
                yield child.optional_vars or child.context_expr
            elif isinstance(child, ast.arguments):
                yield from (*child.posonlyargs, *child.args, *child.kwonlyargs)
            elif isinstance(child, ast.expr):
                yield child


_BODIES = frozenset({"body", "orelse", "finalbody", "handlers", "decorator_list", "type_params"})
_WORDS = {
    ast.Try: "try",
    ast.TryStar: "try",
    ast.ExceptHandler: "except",
    ast.ClassDef: "class",
    ast.FunctionDef: "def",
}
