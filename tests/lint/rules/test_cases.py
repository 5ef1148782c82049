"""Every rule on scripts that have its mistake, on what `--fix` makes of them, and on scripts that only look so."""

from __future__ import annotations

import os
from pathlib import Path

import lint_cases
import pytest
from lint_cases import Case

from oomdoctor.cli import main
from oomdoctor.lint.engine import check_module, position_of_hit
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL

DEFAULT = [rule for rule in ALL if rule.default]


def found(case: Case) -> list[tuple[int, str]]:
    """Line and code of each finding in a case, of the rules that are on and of the rule that the case belongs to."""
    rules = [rule for rule in ALL if rule.default or rule.code == case.code]
    return sorted(
        (position_of_hit(hit)[0], rule.code) for rule, hit in check_module(parse(case.text, Path("case.py")), rules)
    )


@pytest.mark.parametrize("case", lint_cases.CASES, ids=str)
def test_each_mistake_is_found_at_its_line_and_nothing_else(case: Case) -> None:
    """All default rules together find what a script is marked with, and no more."""
    assert found(case) == case.expected


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_the_examples_in_a_rule_are_what_they_say(rule) -> None:  # noqa: ANN001
    """The bad example has the mistake, and in the good and the fixed one no rule that is on finds anything."""
    on = [*DEFAULT, rule]
    assert rule.code in {other.code for other, _ in check_module(parse(rule.bad, Path("bad.py")), on)}
    for text in (rule.good, rule.fixed or ""):
        assert not check_module(parse(text, Path("good.py")), on)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_each_rule_has_its_variants(rule) -> None:  # noqa: ANN001
    """At least eight scripts have the mistake in different forms, and as many only look so."""
    names = [case.name for case in lint_cases.CASES if case.code == rule.code]
    wanted = f"tests/lint/cases/{rule.code}.md needs eight `bad_` and eight `good_` cases"
    assert sum(name.startswith("bad_") for name in names) >= 8, wanted
    assert sum(name.startswith("good_") for name in names) >= 8, wanted


def fixed(case: Case, folder: Path) -> str:
    """The text that `lint --fix` leaves of a script, which it must not change a second time."""
    script = folder / f"{case.name}.py"
    script.write_text(case.text, encoding="utf-8")
    main(["lint", "--isolated", "--fix", "--extend-select", case.code, str(script)])
    once = script.read_text(encoding="utf-8")
    main(["lint", "--isolated", "--fix", "--extend-select", case.code, str(script)])
    assert script.read_text(encoding="utf-8") == once
    return once


@pytest.mark.parametrize("case", [case for case in lint_cases.CASES if case.fixed is not None], ids=str)
def test_a_script_is_fixed_as_its_second_block_shows(case: Case, tmp_path: Path) -> None:
    """`--fix` turns a script into its fixed text, once and for all, and leaves nothing else different."""
    text = fixed(case, tmp_path)
    if os.environ.get("OOMDOCTOR_TEST_REWRITE") and text != case.fixed:
        lint_cases.write_fixed(case, text)
        case = lint_cases.Case(case.code, case.name, case.text, text)
    assert text == case.fixed


def test_each_script_with_a_fix_has_its_fixed_text() -> None:
    """No fixed text is missing, and none is left behind by a rule that has changed."""
    fixable = [case for case in lint_cases.CASES if case.name.startswith("bad_") and is_fixable(case)]
    assert fixable == [case for case in lint_cases.CASES if case.fixed is not None]


def is_fixable(case: Case) -> bool:
    """Whether a finding in a case has a fix."""
    rules = [rule for rule in ALL if rule.default or rule.code == case.code]
    return any(hit.edits for _, hit in check_module(parse(case.text, Path("case.py")), rules))
