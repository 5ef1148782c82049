"""Every rule on scripts that have its mistake and on scripts that only look so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomdoctor.lint.checking import check, position
from oomdoctor.lint.code.parsing import parse
from oomdoctor.lint.rules import ALL

FIXTURES = Path(__file__).parent / "fixtures"
SCRIPTS = sorted(path for path in FIXTURES.rglob("*.py") if not path.name.endswith(".fixed.py"))
MARK = re.compile(r"#\s*expect:\s*(OOM\d+(?:\s*,\s*OOM\d+)*)")
DEFAULT = [rule for rule in ALL if rule.default]


def expected(text: str) -> list[tuple[int, str]]:
    """Line and code of each finding that a script says it should have."""
    return sorted(
        (number, code.strip())
        for number, line in enumerate(text.splitlines(), 1)
        for mark in MARK.finditer(line)
        for code in mark[1].split(",")
    )


def found(text: str, path: Path) -> list[tuple[int, str]]:
    """Line and code of each finding that it has, of the rules that are on and of the one whose folder it lies in."""
    rules = [rule for rule in ALL if rule.default or rule.code == path.parent.name]
    return sorted((position(hit)[0], rule.code) for rule, hit in check(parse(text, path), rules))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_mistake_is_found_at_its_line_and_nothing_else(path: Path) -> None:
    """All default rules together find what a script is marked with, and no more."""
    text = path.read_text(encoding="utf-8")
    assert found(text, path) == expected(text)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_the_examples_in_a_rule_are_what_they_say(rule) -> None:  # noqa: ANN001
    """The bad example has the mistake, and in the good and the fixed one no rule that is on finds anything."""
    on = [*DEFAULT, rule]
    assert rule.code in {other.code for other, _ in check(parse(rule.bad, Path("bad.py")), on)}
    for text in (rule.good, rule.fixed or ""):
        assert not check(parse(text, Path("good.py")), on)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_each_rule_has_its_variants(rule) -> None:  # noqa: ANN001
    """At least eight scripts have the mistake in different forms, and as many only look so."""
    names = [path.name for path in SCRIPTS if path.parent.name == rule.code]
    assert sum(name.startswith("bad_") for name in names) >= 8
    assert sum(name.startswith("good_") for name in names) >= 8
