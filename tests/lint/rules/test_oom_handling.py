"""How bad the findings about handlers of out-of-memory errors are, beyond where they are."""

from __future__ import annotations

from pathlib import Path

import lint_cases
import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL
from oomdoctor.results import Severity


def severities(name: str) -> list[Severity]:
    """Severities of the findings in a case, by the rule that the case belongs to."""
    case = lint_cases.case(name)
    rules = [rule for rule in ALL if rule.code == case.code]
    return [hit.severity or rule.severity for rule, hit in check_module(parse(case.text, Path("case.py")), rules)]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("OOM121/bad_recursive", Severity.WARNING),
        ("OOM121/bad_cpu_fallback", Severity.NOTE),
        ("OOM122/bad_str", Severity.WARNING),
        ("OOM122/bad_not_in", Severity.NOTE),
        ("OOM123/bad_continue", Severity.ERROR),
    ],
)
def test_a_handler_is_as_bad_as_what_it_costs(name: str, severity: Severity) -> None:
    """A retry on the CPU and a text that names no device are notes; a rank that goes on alone is an error."""
    assert severities(name) == [severity]
