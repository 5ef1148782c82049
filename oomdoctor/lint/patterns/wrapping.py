"""Edits that put a method call behind an expression, or one more argument into a call."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.rule import Edit

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module

_TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def called_on(node: ast.expr, call: str) -> tuple[Edit, ...]:
    """Edits that turn `node` into `node.call`, in parentheses where it needs them.

    Args:
        node: An expression of the file.
        call: What comes behind it, such as `detach()`.
    """
    if node.end_lineno is None or node.end_col_offset is None:
        return ()
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    if isinstance(node, _TIGHT):
        return (Edit(end, end, f".{call}"),)
    return (Edit(start, start, "("), Edit(end, end, f").{call}"))


def with_keyword(call: ast.Call, name: str, value: str, module: Module) -> tuple[Edit, ...]:
    """The edit that gives a call one more keyword argument, or replaces the one it has; none where the text is unusual.

    Args:
        call: A call with at least one argument.
        name: The keyword.
        value: Its source text.
        module: The file.
    """
    given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if given is not None:
        return (Edit((given.lineno, given.col_offset), _end(given), value),)
    last = max([*call.args, *(keyword.value for keyword in call.keywords)], key=_end, default=None)
    if last is None or not _is_last(last, call, module):
        return ()
    return (Edit(_end(last), _end(last), f", {name}={value}"),)


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _is_last(node: ast.expr, call: ast.Call, module: Module) -> bool:
    """Whether nothing but a comma and the call's own parenthesis comes behind: not one around the argument."""
    lines = module.text.split("\n")
    (first, start), (last, end) = _end(node), _end(call)
    rest = [lines[number].encode() for number in range(first - 1, last)]
    rest[-1] = rest[-1][:end]
    rest[0] = rest[0][start:]
    text = b"".join(line.partition(b"#")[0] for line in rest)
    return text.replace(b",", b"").strip() == b")"
