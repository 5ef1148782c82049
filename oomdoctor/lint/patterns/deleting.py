"""Putting `del` behind the last use of a name."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.patterns.syntax import above, block_of, parents_in
from oomdoctor.lint.rule import Edit

if TYPE_CHECKING:
    from oomdoctor.lint.patterns.holders import Holder


def deleted_after_use(holder: Holder, names: list[str], line: int | None) -> tuple[Edit, ...]:
    """The edit that deletes local names behind the last statement that reads them; none where something else may.

    Args:
        holder: Where the first of them is set.
        names: Which names.
        line: Where training begins, in the function that holds them.
    """
    if holder.function is None or holder.module.path.suffix == ".ipynb":
        return ()  # a name of the module may be imported, or used in a cell that comes later or again
    tree = holder.module.tree
    parents = parents_in(tree)
    block = block_of(holder.statement, parents)
    uses = [node for node in walk(tree) if isinstance(node, ast.Name) and node.id in names]
    if line is None or not block or len(uses) == 0 or any("." in name for name in names):
        return ()
    places = [_place(use, block, parents) for use in uses]
    if any(place is None for place in places):
        return ()
    last = block[max(place for place in places if place is not None)]
    return _after(last, block, names, holder) if (last.end_lineno or 0) < line else ()


def _place(use: ast.AST, block: list[ast.stmt], parents: dict[ast.AST, ast.AST]) -> int | None:
    """Which statement of the block a name stands in; None where it is outside, or in a function that may run later."""
    for outer in above(use, parents):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Global):
            return None
        if outer in block:
            return block.index(outer)
    return None


def _after(last: ast.stmt, block: list[ast.stmt], names: list[str], holder: Holder) -> tuple[Edit, ...]:
    lines = holder.module.text.split("\n")
    first, end = block[0], last.end_lineno or last.lineno
    following = block[block.index(last) + 1 :]
    shares_line = any(statement.lineno == end for statement in following) or end >= len(lines)
    indent = lines[first.lineno - 1][: first.col_offset]
    if shares_line or indent.strip():
        return ()
    return (Edit((end + 1, 0), (end + 1, 0), f"{indent}del {', '.join(names)}\n"),)
