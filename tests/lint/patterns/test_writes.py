"""Where names get their values."""

from __future__ import annotations

import ast

import pytest

from oomdoctor.lint.patterns.counters import definitions, expanded_text, unconditional, writes


def read(text: str) -> list[tuple[str, str | None, int | None]]:
    """Name, value and what is added, for each write in a text."""
    found = writes([ast.parse(text)])
    return [(write.text, None if write.value is None else ast.unparse(write.value), write.added) for write in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 0", [("n", "0", None)]),
        ("self.n += 1", [("self.n", None, 1)]),
        ("n -= 1", [("n", None, None)]),
        ("n = n + 1", [("n", "n + 1", 1)]),
        ("n = 2 + n", [("n", "2 + n", 2)]),
        ("n += len(x)", [("n", None, None)]),
        ("a = b = 1", [("a", "1", None), ("b", "1", None)]),
        ("a, b = 1, x", [("a", "1", None), ("b", "x", None)]),
        ("q, r = divmod(i, k)", [("q", "divmod(i, k)[0]", None), ("r", "divmod(i, k)[1]", None)]),
        ("a, b = f()", [("a", None, None), ("b", None, None)]),
        ("n: int = 3", [("n", "3", None)]),
        ("n: int", []),
        ("f(n := 1)", [("n", "1", None)]),
        ("for i, (a, *b) in x: pass", [("i", None, None), ("a", None, None), ("b", None, None)]),
        ("with f() as g: pass", [("g", None, None)]),
        ("del n", [("n", None, None)]),
        ("[i for i in x]", [("i", None, None)]),
    ],
)
def test_each_way_to_write_a_name_is_seen(text: str, expected: list[tuple[str, str | None, int | None]]) -> None:
    """Assignments of all kinds, loops, context managers and deletions give a name another value."""
    assert read(text) == expected


def test_only_what_is_written_once_stands_for_something() -> None:
    """A name with two values has no one meaning."""
    found = writes([ast.parse("a = 1\nb = 2\nb = 3\nc = 4\nc += 1")])
    assert {name: ast.unparse(value) for name, value in definitions(found).items()} == {"a": "1"}


def test_names_are_spelled_out_to_the_end_of_the_chain_or_of_patience() -> None:
    """What a name stands for is added to the text, also through other names and not for ever."""
    meanings = definitions(writes([ast.parse("total = steps * 2\nsteps = len(loader)\nx = f(y)\ny = f(x)")]))
    assert "len(loader)" in expanded_text(ast.parse("Schedule(total)", mode="eval").body, meanings)
    assert expanded_text(ast.parse("x", mode="eval").body, meanings).count("f(") < 10


def test_what_stands_in_a_branch_is_not_unconditional() -> None:
    """Statements of a body, and of `with` and `try` in it, always run; those of an `if` or a loop may not."""
    tree = ast.parse("a()\nwith x:\n    b()\ntry:\n    c()\nexcept E:\n    d()\nif y:\n    e()\nfor z in w:\n    f()")
    texts = [ast.unparse(line) for line in unconditional(tree.body) if isinstance(line, ast.Expr)]
    assert texts == ["a()", "b()", "c()"]
