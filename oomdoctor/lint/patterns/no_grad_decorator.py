"""Putting `@torch.no_grad()` on a function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.rule import Edit

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function

_HARMLESS_ABOVE: Final = frozenset({"staticmethod", "classmethod"})
_SWITCHES: Final = frozenset({"set_grad_enabled", "enable_grad"})


def decorated(function: Function) -> tuple[Edit, ...]:
    """The edit that switches autograd off in a function; none where that may do something else as well.

    It may where the function has decorators that see what they are put on, switches autograd on itself, is the
    script's own `main`, or where `torch` does not mean the library yet when the function is defined.
    """
    node = function.node
    above = {decorator.id if isinstance(decorator, ast.Name) else "" for decorator in node.decorator_list}
    if above - _HARMLESS_ABOVE or node.name == "main" or not _has_torch(function) or _switches(node):
        return ()
    start = (node.lineno, node.col_offset)
    return (Edit(start, start, "@torch.no_grad()\n" + _indent(function)),)


def _has_torch(function: Function) -> bool:
    """Whether `import torch` stands at the top of the file, above the function."""
    return any(
        isinstance(statement, ast.Import)
        and statement.lineno < function.node.lineno
        and any(alias.asname is None and alias.name.partition(".")[0] == "torch" for alias in statement.names)
        for statement in function.module.tree.body
    )


def _switches(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr in _SWITCHES for inner in walk(node))


def _indent(function: Function) -> str:
    line = function.module.text.split("\n")[function.node.lineno - 1]
    return line[: len(line) - len(line.lstrip())]
