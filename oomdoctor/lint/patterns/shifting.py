"""Edits that shift an accumulation's boundary to where it should be."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.patterns.linear import linear
from oomdoctor.lint.patterns.sole_use import decides_alone
from oomdoctor.lint.rule import Edit

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.patterns.accumulation import Accumulation


def shifted(found: Accumulation) -> tuple[Edit, ...]:
    """The edit that puts a boundary right; none unless the loop counts and its own function has the only remainder.

    Args:
        found: An accumulation whose boundary comes too early or too late.
    """
    count, boundary, guard, lead = found.count, found.boundary, found.guard, found.lead
    if count is None or boundary is None or guard is None or lead is None or found.owner is None:
        return ()
    remainders = [node for node in walk(guard.test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
    if count.by_hand or boundary.least is not None or len(remainders) != 1:
        return ()
    number = linear(remainders[0].left)
    if number.name is None or number.name != boundary.counter or not decides_alone(found, number.name):
        return ()
    return _replaced(remainders[0], _counted(number.name, number.constant - lead), found.owner)


def _counted(counter: str, ahead: int) -> str:
    return counter if ahead == 0 else f"({counter} {'+' if ahead > 0 else '-'} {abs(ahead)})"


def _replaced(remainder: ast.BinOp, text: str, module: Module) -> tuple[Edit, ...]:
    """Replace what is divided, its parentheses with it, where it stands in one line with the `%`."""
    left = remainder.left
    if left.end_col_offset is None or not remainder.lineno == left.end_lineno == remainder.right.lineno:
        return ()
    lines = module.text.encode().split(b"\n")
    line = lines[remainder.lineno - 1] if remainder.lineno <= len(lines) else b""
    sign = line.find(b"%", left.end_col_offset)
    before = line[remainder.col_offset : sign].rstrip()
    if sign < 0 or not _is_same(before, left):
        return ()
    start = (remainder.lineno, remainder.col_offset)
    return (Edit(start, (remainder.lineno, remainder.col_offset + len(before)), text),)


def _is_same(source: bytes, node: ast.expr) -> bool:
    """Whether a piece of the text is an expression as parsed: lines are not counted the same way by everyone."""
    try:
        parsed = ast.parse(source.decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(parsed) == ast.dump(node)
