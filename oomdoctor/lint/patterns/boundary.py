"""Boundary conditions of accumulation windows, brought to one form."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_DEEPEST_SUM: Final = 12
_SIGNS: Final[Mapping[type[ast.operator], int]] = MappingProxyType({ast.Add: 1, ast.Sub: -1})


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum.

    Attributes:
        terms: Factor of each name or other expression, by its text; never zero.
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
        meaning: Definition of a name or a call, where that is known.
        depth: Depth in the expression; deeper than any code that people write, a node is a term by itself.
    """
    if depth > _DEEPEST_SUM:
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
    """Return the expression that another is the same as: `x` for `name := x`, `+x` and `int(x)`."""
    match node:
        case ast.NamedExpr(value=inner) | ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return inner
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            return inner
    return None


if TYPE_CHECKING:
    Meaning = Callable[[ast.expr], ast.expr | None]

_FRAMEWORK_FLAGS: Final = frozenset({"sync_gradients", "is_gradient_accumulation_boundary"})
_DEEPEST_CONDITION: Final = 8


@dataclass(frozen=True, slots=True)
class Boundary:
    """Boundary of accumulation windows: it holds whenever `counter + phase` is a multiple of `period`.

    Attributes:
        counter: Text of what counts, such as `step` or `self.pending`; empty where a framework counts.
        period: Text of how many micro-batches a window has, such as `args.accumulation_steps` or `4`.
        phase: Number added to the counter.
        least: Least value of `counter + phase`, as in `i > 0 and i % k == 0`; None where there is none.
        includes_last: Whether it holds at the last batch too, or in another case that cannot be read, which may be it.
        reaches: Whether the counter is compared with the period and set back, rather than divided by it.
    """

    counter: str
    period: str
    phase: int = 0
    least: int | None = None
    includes_last: bool = False
    reaches: bool = False

    @property
    def by_framework(self) -> bool:
        """Whether a framework decides where windows end, as `accelerator.sync_gradients` does."""
        return not self.counter

    def is_multiple(self, number: int) -> bool:
        """Return whether a number is a multiple of any period: 0 is, and 8 is one of a literal 4."""
        return number == 0 or (self.period.isdigit() and int(self.period) > 0 and number % int(self.period) == 0)

    def holds(self, counter: int, period: int, *, last: bool = False) -> bool:
        """Return whether the condition holds.

        Args:
            counter: Value of the counter.
            period: Micro-batches of a window.
            last: Whether it is the last batch.
        """
        if last and self.includes_last:
            return True
        position = counter + self.phase
        if self.reaches:
            return position >= period
        return position % period == 0 and (self.least is None or position >= self.least)


def boundary_of(
    test: ast.expr,
    *,
    holds: bool = True,
    meaning: Meaning = nothing_known,
    set_back: frozenset[str] = frozenset(),
) -> Boundary | None:
    """Read a condition.

    Args:
        test: The condition.
        holds: Whether what is asked about happens where it holds, or where it does not.
        meaning: Definition of a name or a call, where that is known; it must know nothing of counters.
        set_back: Texts of counters that begin anew where the condition holds, so that it may compare them.

    Returns:
        Its form; None where it is not of this kind, or not surely.
    """
    return _Reader(meaning, set_back).read(test, holds=holds)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one condition; the fields are those of `boundary_of`."""

    meaning: Meaning
    set_back: frozenset[str]

    def read(self, test: ast.expr, *, holds: bool, depth: int = 0) -> Boundary | None:
        if depth > _DEEPEST_CONDITION:
            return None
        test, holds = _bare(test, holds=holds)
        match test:
            case ast.BoolOp():
                return self._joined(test, holds=holds, depth=depth + 1)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, type(op), right, holds=holds)
        if holds and _is_framework_flag(test):
            return Boundary("", "")
        # A name that stands for a condition, or a remainder that is asked whether it is zero.
        divided = self._divided(test)
        if divided is not None:
            return None if holds else _at_remainder(*divided, Linear())
        stands_for = self.meaning(test)
        return None if stands_for is None else self.read(stands_for, holds=holds, depth=(depth + 1))

    def _joined(self, test: ast.BoolOp, *, holds: bool, depth: int) -> Boundary | None:
        """Several conditions: one of them is the boundary, the others allow more or take away."""
        read = [(part, self.read(part, holds=holds, depth=depth)) for part in test.values]
        found = [boundary for _, boundary in read if boundary is not None]
        if len(found) != 1:
            return None
        others = [part for part, boundary in read if boundary is None]
        if isinstance(test.op, ast.Or) is holds:
            more = any(not _is_about_period(other, found[0].period) for other in others)
            return replace(found[0], includes_last=found[0].includes_last or more)
        return self._narrowed(found[0], others, holds=holds)

    def _narrowed(self, boundary: Boundary, others: list[ast.expr], *, holds: bool) -> Boundary:
        """Return a boundary where other conditions have to hold as well."""
        for other in others:
            bound = self._lower_bound(other, boundary.counter, holds=holds)
            if bound is not None:
                least = bound + boundary.phase
                boundary = replace(boundary, least=least if boundary.least is None else max(least, boundary.least))
            elif "len(" in text_of(other):
                boundary = replace(boundary, includes_last=True)  # the last batch is thought of, whatever is done there
        return boundary

    def _lower_bound(self, test: ast.expr, counter: str, *, holds: bool) -> int | None:
        """The least value that a condition such as `i > 0` leaves the counter, which counts from 0 or from 1."""
        test, holds = _bare(test, holds=holds)
        match test:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                difference = linear(left, self.meaning).plus(linear(right, self.meaning), -1)
                return _least(difference, counter, type(op), holds=holds)
        return 1 if holds and linear(test, self.meaning) == Linear({counter: 1}) else None

    def _compared(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr, *, holds: bool) -> Boundary | None:
        divided = self._divided(left)
        if divided is not None:
            return self._remainder(divided, op, linear(right), holds=holds)
        flipped = _FLIPPED.get(op)
        divided = self._divided(right)
        if divided is not None and flipped is not None:
            return self._remainder(divided, flipped, linear(left), holds=holds)
        return self._reached(left, op, right, holds=holds)

    def _divided(self, node: ast.expr, depth: int = 0) -> tuple[Linear, Linear] | None:
        """Return dividend and divisor of a remainder; None for another expression."""
        match node:
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return linear(left, self.meaning), linear(right)
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="divmod"), args=[left, right]), slice=ast.Constant(value=1 | -1)
            ):
                return linear(left, self.meaning), linear(right)
            case ast.NamedExpr(value=inner):
                return self._divided(inner, depth + 1)
        stands_for = self.meaning(node) if depth < _DEEPEST_CONDITION else None
        return None if stands_for is None else self._divided(stands_for, depth + 1)

    @staticmethod
    def _remainder(
        divided: tuple[Linear, Linear], op: type[ast.cmpop], value: Linear, *, holds: bool
    ) -> Boundary | None:
        """A remainder that is compared with a value: what counts is whether that singles out one remainder."""
        highest = divided[1].plus(Linear(constant=-1))
        for wanted in (Linear(), highest):
            offset = value.plus(wanted, -1)
            if not offset.terms and (op, holds, offset.constant) in (_LOWEST if wanted is not highest else _HIGHEST):
                return _at_remainder(*divided, wanted)
        return _at_remainder(*divided, value) if (op, holds) in _EXACTLY else None

    def _reached(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr, *, holds: bool) -> Boundary | None:
        """A counter that is compared with the period: `pending == k`, `k <= pending`."""
        if self._counted(left) is None:
            left, right, flipped = right, left, _FLIPPED.get(op)
            if flipped is None:
                return None
            op = flipped
        counter, count = self._counted(left), linear(left, self.meaning)
        ahead = _REACHES.get((op, holds))
        if counter is None or ahead is None:
            return None
        period = linear(right)
        whole = Linear(period.terms) if period.terms else period
        beyond = period.constant if period.terms else 0
        return Boundary(counter, _text(whole), count.constant + ahead - beyond, reaches=True)

    def _counted(self, node: ast.expr) -> str | None:
        name = linear(node, self.meaning).name
        return name if name in self.set_back else None


def _at_remainder(number: Linear, period: Linear, remainder: Linear) -> Boundary | None:
    """The boundary `number % period == remainder`."""
    counted = number.plus(remainder, -1)
    for times in (0, 1, -1):
        shifted = counted.plus(period, times) if period.terms else counted
        name = shifted.name
        if name is not None and name not in period.terms:
            return Boundary(name, _text(period), shifted.constant)
    return None


def _least(difference: Linear, counter: str, op: type[ast.cmpop], *, holds: bool) -> int | None:
    """The least value of a counter for which a difference of it and a number compares with 0 as wanted."""
    if difference.terms == {counter: -1}:
        flipped = _FLIPPED.get(op)
        return None if flipped is None else _least(Linear().plus(difference, -1), counter, flipped, holds=holds)
    least = _LEAST.get((op, holds))
    if difference.name != counter or least is None or (op in _EQUALITY and difference.constant):
        return None
    return least - difference.constant


def _text(number: Linear) -> str:
    """A sum as source text."""
    parts = [text if times == 1 else f"{times} * {text}" for text, times in number.terms.items()]
    if number.constant or not parts:
        parts.append(str(number.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _bare(test: ast.expr, *, holds: bool) -> tuple[ast.expr, bool]:
    """A condition without `not`, `bool(...)` and `name :=` around it, and whether it has to hold."""
    while True:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                test, holds = inner, not holds
            case ast.NamedExpr(value=inner) | ast.Call(func=ast.Name(id="bool"), args=[inner], keywords=[]):
                test = inner
            case _:
                return test, holds


def _is_about_period(test: ast.expr, period: str) -> bool:
    """Return whether a condition only compares the period with a number, as `k == 1 or i % k == 0` does."""
    match test:
        case ast.Compare(left=left, ops=[_], comparators=[ast.Constant()]):
            return text_of(left) == period
    return False


def _is_framework_flag(node: ast.expr) -> bool:
    function = node.func if isinstance(node, ast.Call) else node
    return isinstance(function, ast.Attribute) and function.attr in _FRAMEWORK_FLAGS


_FLIPPED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = MappingProxyType(
    {
        ast.Eq: ast.Eq,
        ast.NotEq: ast.NotEq,
        ast.Is: ast.Is,
        ast.Lt: ast.Gt,
        ast.Gt: ast.Lt,
        ast.LtE: ast.GtE,
        ast.GtE: ast.LtE,
    }
)

_EQUALITY: Final = frozenset({ast.Eq, ast.NotEq})

_EXACTLY: Final = frozenset({(ast.Eq, True), (ast.Is, True), (ast.NotEq, False), (ast.IsNot, False)})
"""Operators that, holding or not, say that both sides are equal."""

_LOWEST: Final = frozenset({(ast.Lt, True, 1), (ast.LtE, True, 0), (ast.Gt, False, 0), (ast.GtE, False, 1)})
"""Operators that say that a remainder is 0, and what they compare it with."""

_HIGHEST: Final = frozenset({(ast.GtE, True, 0), (ast.Gt, True, -1), (ast.Lt, False, 0), (ast.LtE, False, -1)})
"""The like for the highest remainder, `k - 1`, and how far from it lies what they compare with."""

_REACHES: Final[Mapping[tuple[type[ast.cmpop], bool], int]] = MappingProxyType(
    {
        (ast.Eq, True): 0,
        (ast.GtE, True): 0,
        (ast.NotEq, False): 0,
        (ast.Lt, False): 0,
        (ast.Gt, True): -1,
        (ast.LtE, False): -1,
    }
)
"""Operators that say that a counter has reached a number, and what is to be added to it for that."""

_LEAST: Final[Mapping[tuple[type[ast.cmpop], bool], int]] = MappingProxyType(
    {
        (ast.Gt, True): 1,
        (ast.GtE, True): 0,
        (ast.NotEq, True): 1,
        (ast.LtE, False): 1,
        (ast.Lt, False): 0,
        (ast.Eq, False): 1,
    }
)
"""The least whole number for which a comparison with 0 comes out so, of those that are not below 0."""
