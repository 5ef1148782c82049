"""Where a name gets its values: what it is set to, and what is added to it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEEPEST: Final = 3


@dataclass(frozen=True, slots=True)
class Write:
    """One statement that gives a name a value.

    Attributes:
        node: The statement.
        text: The name, or a dotted text such as `self.pending`.
        value: What it is set to; None where that cannot be told from the statement.
        added: The whole number that is added to what it was; None where it is something else.
    """

    node: ast.AST
    text: str
    value: ast.expr | None = None
    added: int | None = None

    @property
    def number(self) -> int | None:
        """The whole number that it is set to; None where it is something else."""
        value = self.value
        return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None


def writes(nodes: Sequence[ast.AST]) -> list[Write]:
    """All of them in these nodes, at whatever depth."""
    return [write for node in nodes for write in _written_in(node)]


@lru_cache(maxsize=128)
def _written_in(node: ast.AST) -> tuple[Write, ...]:
    """What one node writes; every rule about accumulation asks again."""
    return tuple(write for inner in walk(node) for write in _written(inner))


def definitions(found: Sequence[Write]) -> dict[str, ast.expr]:
    """What each name stands for that is written once only, by what it is set to there."""
    times: dict[str, int] = {}
    for write in found:
        times[write.text] = times.get(write.text, 0) + 1
    return {write.text: write.value for write in found if write.value is not None and times[write.text] == 1}


def spelled_out(node: ast.expr, meanings: Mapping[str, ast.expr], depth: int = _DEEPEST) -> str:
    """An expression's text, and those of what the names in it stand for, and so on.

    Args:
        node: The expression.
        meanings: What names stand for.
        depth: How far to go.
    """
    texts = [text_of(node)]
    for part in walk(node):
        meaning = meanings.get(part.id) if isinstance(part, ast.Name) else None
        if meaning is not None and meaning is not node and depth > 0:
            texts.append(spelled_out(meaning, meanings, depth - 1))
    return " ".join(texts)


def unconditional(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run whenever a body does and nothing leaves it before."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            yield from unconditional(statement.body)


def _written(node: ast.AST) -> Iterator[Write]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _to_target(node, target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _to_target(node, target, value)
        case ast.NamedExpr(target=target, value=value):
            yield Write(node, target.id, value)
        case ast.AugAssign(target=ast.Name() | ast.Attribute() | ast.Subscript() as target, op=op, value=value):
            yield Write(node, text_of(target), added=_number(value) if isinstance(op, ast.Add) else None)
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            yield from (Write(node, name) for name in _names(target))
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from (Write(node, name) for name in _names(target))
        case ast.Delete(targets=targets):
            yield from (Write(node, name) for target in targets for name in _names(target))


def _to_target(node: ast.AST, target: ast.expr, value: ast.expr) -> Iterator[Write]:
    if isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
        text = text_of(target)
        yield Write(node, text, value, _added(text, value))
        return
    for index, name in enumerate(_names(target)):
        yield Write(node, name, _part(target, value, index))


def _part(target: ast.expr, value: ast.expr, index: int) -> ast.expr | None:
    """What one of several names is set to: `divmod` and displays are taken apart, nothing else is."""
    if not isinstance(target, ast.Tuple | ast.List) or not all(isinstance(inner, ast.Name) for inner in target.elts):
        return None
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        return value.elts[index]
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "divmod":
        return ast.Subscript(value, ast.Constant(index), ast.Load())
    return None


def _added(text: str, value: ast.expr) -> int | None:
    """What `text = value` adds, as in `n = n + 1`."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for side, other in ((left, right), (right, left)):
                if isinstance(side, ast.Name | ast.Attribute | ast.Subscript) and text_of(side) == text:
                    return _number(other)
    return None


def _number(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _names(target: ast.expr) -> list[str]:
    """Every name and attribute that an assignment to a target sets."""
    if isinstance(target, ast.Tuple | ast.List):
        return [name for inner in target.elts for name in _names(inner)]
    if isinstance(target, ast.Starred):
        return _names(target.value)
    return [text_of(target)] if isinstance(target, ast.Name | ast.Attribute | ast.Subscript) else []
