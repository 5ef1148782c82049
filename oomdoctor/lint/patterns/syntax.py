"""What stands around a node of a file's tree."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.code.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

Parents = dict[ast.AST, ast.AST]


def parents_in(scope: ast.AST) -> Parents:
    """Each node below `scope` with the node that it is a part of."""
    return {child: parent for parent in walk(scope) for child in ast.iter_child_nodes(parent)}


def above(node: ast.AST, parents: Parents) -> Iterator[ast.AST]:
    """The nodes that a node lies in, innermost first."""
    parent = parents.get(node)
    while parent is not None:
        yield parent
        parent = parents.get(parent)


def block_of(statement: ast.AST, parents: Parents) -> list[ast.stmt]:
    """The list of statements that a statement stands in; empty where it stands in none."""
    parent = parents.get(statement)
    if parent is None:
        return []
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return next((block for block in blocks if isinstance(block, list) and statement in block), [])


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """What an assignment assigns to, a tuple's elements each; empty for anything else."""
    if isinstance(statement, ast.Assign):
        return [inner for target in statement.targets for inner in _flat(target)]
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return [statement.target]
    return []


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [inner for element in target.elts for inner in _flat(element)]
    return [target]


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What lies in a function or a module itself, not in functions and classes that are defined in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
