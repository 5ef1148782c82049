"""Conditions that end a window of micro-batches."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.lint.patterns.boundary import Boundary, boundary_of

BATCHES = 23


class Loader:
    """Batches whose number can be asked for."""

    def __len__(self) -> int:
        """How many there are."""
        return BATCHES


def condition(text: str) -> ast.expr:
    """The expression of a text."""
    return ast.parse(text, mode="eval").body


def fires(text: str, period: int, *, holds: bool = True) -> list[int]:
    """The values of `i` for which a condition comes out as wanted, by Python's own word."""
    code = compile(text, "<condition>", "eval")
    names = {"k": period, "loader": Loader(), "n": BATCHES}
    return [i for i in range(BATCHES) if bool(eval(code, {**names, "i": i})) is holds]  # noqa: S307 - texts made here


def predicted(boundary: Boundary, period: int) -> list[int]:
    """The values of `i` for which a boundary says that it holds."""
    return [i for i in range(BATCHES) if boundary.holds(i, period, last=i == BATCHES - 1)]


COUNTS = st.sampled_from(["i", "(i + 1)", "(1 + i)", "(i - 1)", "(i + 2)", "int(i + 1)", "(j := i + 1)", "(i - -1)"])
AT_ZERO = ["{} == 0", "0 == {}", "not {}", "{} < 1", "{} <= 0", "1 > {}", "not ({} != 0)", "not {} > 0", "not {} >= 1"]
AT_HIGHEST = ["{} == k - 1", "k - 1 == {}", "{} >= k - 1", "{} > k - 2", "not {} != k - 1", "not {} < k - 1"]
SHAPES = st.sampled_from([*AT_ZERO, *AT_HIGHEST, "{} == 1", "not {} != 1", "not bool({})"])
ALTERNATIVES = st.sampled_from(["", " or i + 1 == len(loader)", " or i == n - 1", " or i >= len(loader) - 1"])
MORE = st.sampled_from(
    ["", "i > 0 and ", "i >= 1 and ", "i > 4 and ", "i != 0 and ", "i and ", "not i == 0 and ", "0 < i and "]
)


@settings(max_examples=400)
@given(COUNTS, SHAPES, ALTERNATIVES, MORE, st.integers(2, 9), st.booleans(), st.booleans())
def test_a_boundary_holds_just_where_its_condition_does(  # noqa: PLR0913, PLR0917 - the parts of a condition
    count: str, shape: str, alternative: str, more: str, period: int, inverted: bool, literal: bool
) -> None:
    """What is read from a condition holds for the same batches as the condition itself, inverted or not."""
    text = f"{more}({shape.format(f'{count} % k')}){alternative}"
    text = f"not ({text})" if inverted else text
    text = text.replace("k", str(period)) if literal else text
    boundary = boundary_of(condition(text), holds=not inverted)
    assert boundary is not None
    assert predicted(boundary, period) == fires(text, period, holds=not inverted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(step + 1) % args.accumulation == 0", Boundary("step", "args.accumulation", 1)),
        ("step % 4 == 3", Boundary("step", "4", -3)),
        ("self.seen % self.k == 0", Boundary("self.seen", "self.k")),
        ("(step + 1) % k == 0 or step + 1 == len(loader)", Boundary("step", "k", 1, includes_last=True)),
        ("accelerator.sync_gradients", Boundary("", "")),
        ("engine.is_gradient_accumulation_boundary()", Boundary("", "")),
        ("divmod(i + 1, k)[1] == 0", Boundary("i", "k", 1)),
        ("flag and i % k == 0", Boundary("i", "k")),
        ("k == 1 or i % k == 0", Boundary("i", "k")),
        ("j == 1 or i % k == 0", Boundary("i", "k", includes_last=True)),
        ("i > 100 and i % k == 0", Boundary("i", "k", least=101)),
        ("i % k == 0 and i + 1 < len(loader)", Boundary("i", "k", includes_last=True)),
    ],
)
def test_a_condition_is_brought_to_its_form(text: str, expected: Boundary) -> None:
    """Counter, period, phase and what else it allows are read."""
    assert boundary_of(condition(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "step > warmup",
        "torch.isfinite(loss)",
        "i % k",
        "i % k == j",
        "i % k == 0 and i % m == 0",
        "i % k == 0 or i % m == 0",
        "(i + j) % k == 0",
        "-i % k == 0",
        "i % k > 1",
        "n == k",
        "0 < i % k < 2",
    ],
)
def test_what_is_no_boundary_or_not_surely_one_is_none(text: str) -> None:
    """Other conditions, two boundaries at once and counts of two variables are not read."""
    assert boundary_of(condition(text)) is None


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("n == k", 0),
        ("n >= k", 0),
        ("k <= n", 0),
        ("n > k - 1", 0),
        ("n + 1 == k", 1),
        ("n == k - 1", 1),
        ("n > k", -1),
    ],
)
def test_a_counter_that_is_set_back_may_be_compared(text: str, phase: int) -> None:
    """A comparison of a counter that begins anew at the boundary is one, at the count at which it first holds."""
    boundary = boundary_of(condition(text), set_back=frozenset({"n"}))
    assert boundary == Boundary("n", "k", phase, reaches=True)
    assert min(n for n in range(20) if eval(text, {"n": n, "k": 7})) == 7 - phase  # noqa: S307 - texts made here


def test_a_set_back_counter_may_be_asked_whether_it_is_still_below() -> None:
    """`if n < k: continue` is the same boundary, seen from the other side."""
    read = boundary_of(condition("n < k"), holds=False, set_back=frozenset({"n"}))
    assert read == Boundary("n", "k", reaches=True)


def test_names_are_read_through() -> None:
    """A name that stands for a condition, a sum or a remainder is what it stands for."""
    meanings = {"update": "done % k == 0 or last", "done": "i + 1", "left": "divmod(done, k)[1]"}

    def meaning(node: ast.expr) -> ast.expr | None:
        return condition(meanings[node.id]) if isinstance(node, ast.Name) and node.id in meanings else None

    assert boundary_of(condition("update"), meaning=meaning) == Boundary("i", "k", 1, includes_last=True)
    assert boundary_of(condition("left == 0"), meaning=meaning) == Boundary("i", "k", 1)


def test_names_that_stand_for_each_other_end() -> None:
    """A meaning that leads back to itself is no boundary, and no endless loop."""
    assert boundary_of(condition("a"), meaning=lambda node: node) is None
    assert boundary_of(condition("a % k == 0"), meaning=lambda node: node) == Boundary("a", "k")


@pytest.mark.parametrize(
    ("period", "number", "expected"), [("4", -4, True), ("4", 1, False), ("k", 0, True), ("k", 4, False)]
)
def test_multiples_are_known_of_literal_periods(period: str, number: int, expected: bool) -> None:
    """Four is a multiple of a period of 4, and of `k` nobody knows."""
    assert Boundary("i", period).is_multiple(number) is expected
