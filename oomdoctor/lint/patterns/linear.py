"""Sums of names and whole numbers, such as `i + 1 - k`, read from expressions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DEEPEST: Final = 12
_SIGNS: Final[Mapping[type[ast.operator], int]] = MappingProxyType({ast.Add: 1, ast.Sub: -1})


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum.

    Attributes:
        terms: How often each name or other expression is in it, by its text; none is there zero times.
        constant: The number beside them.
    """

    terms: Mapping[str, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """The sum of this one and so many of another."""
        terms = dict(self.terms)
        for text, number in other.terms.items():
            terms[text] = terms.get(text, 0) + times * number
        kept = {text: number for text, number in terms.items() if number}
        return Linear(kept, self.constant + times * other.constant)

    @property
    def name(self) -> str | None:
        """The one name, where the sum is that name and a number; else None."""
        return next(iter(self.terms)) if list(self.terms.values()) == [1] else None


def nothing_known(_: ast.expr) -> ast.expr | None:
    """The meaning of names where none is known."""
    return None


def linear(node: ast.expr, meaning: Callable[[ast.expr], ast.expr | None] = nothing_known, depth: int = 0) -> Linear:
    """Read an expression as a sum; what is not one is a term by itself.

    Args:
        node: The expression.
        meaning: What a name or a call stands for, where that is known.
        depth: How far down it lies; what is deeper than any code that people write is a term by itself.
    """
    if depth > _DEEPEST:
        return Linear({text_of(node): 1})
    match node:
        case ast.Constant(value=int(number)):
            return Linear(constant=int(number))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return Linear().plus(linear(inner, meaning, depth + 1), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return linear(left, meaning, depth + 1).plus(linear(right, meaning, depth + 1), _SIGNS[type(op)])
    stands_for = _inside(node) or meaning(node)
    return Linear({text_of(node): 1}) if stands_for is None else linear(stands_for, meaning, depth + 1)


def _inside(node: ast.expr) -> ast.expr | None:
    """What an expression is the same as: `name := x`, `+x` and `int(x)` are `x`."""
    match node:
        case ast.NamedExpr(value=inner) | ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return inner
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            return inner
    return None
