"""What `--fix` makes of each script that has a mistake."""

from __future__ import annotations

import os
from pathlib import Path

import lint_cases
import pytest
from lint_cases import Case

from oomdoctor.cli import main
from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL


def is_fixable(case: Case) -> bool:
    """Whether a finding in a case has a fix."""
    rules = [rule for rule in ALL if rule.default or rule.code == case.code]
    return any(hit.edits for _, hit in check_module(parse(case.text, Path("case.py")), rules))


FIXABLE = [case for case in lint_cases.CASES if case.name.startswith("bad_") and is_fixable(case)]


def fixed(case: Case, folder: Path) -> str:
    """The text that `lint --fix` leaves of a script, which it must not change a second time."""
    script = folder / f"{case.name}.py"
    script.write_text(case.text, encoding="utf-8")
    main(["lint", "--isolated", "--fix", "--extend-select", case.code, str(script)])
    once = script.read_text(encoding="utf-8")
    main(["lint", "--isolated", "--fix", "--extend-select", case.code, str(script)])
    assert script.read_text(encoding="utf-8") == once
    return once


@pytest.mark.parametrize("case", FIXABLE, ids=str)
def test_a_script_is_fixed_as_its_second_block_shows(case: Case, tmp_path: Path) -> None:
    """`--fix` turns a script into its fixed text, once and for all, and leaves nothing else different."""
    text = fixed(case, tmp_path)
    if os.environ.get("OOMDOCTOR_TEST_REWRITE") and text != case.fixed:
        lint_cases.write_fixed(case, text)
        case = lint_cases.Case(case.code, case.name, case.text, text)
    assert text == case.fixed


def test_each_fixed_text_belongs_to_a_script_with_a_fix() -> None:
    """No fixed text is left behind by a rule that has changed."""
    assert [case for case in lint_cases.CASES if case.fixed is not None] == FIXABLE
