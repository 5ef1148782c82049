"""How bad the findings about handlers of out-of-memory errors are, beyond where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.checking import check
from oomdoctor.lint.code.parsing import parse
from oomdoctor.lint.rules import ALL
from oomdoctor.results import Severity

FIXTURES = Path(__file__).parents[1] / "fixtures"


def severities(name: str) -> list[Severity]:
    """Of the findings in a script, by the rule in whose folder it lies."""
    path = FIXTURES / name
    rules = [rule for rule in ALL if rule.code == path.parent.name]
    return [hit.severity or rule.severity for rule, hit in check(parse(path.read_text(encoding="utf-8"), path), rules)]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("OOM121/bad_recursive.py", Severity.WARNING),
        ("OOM121/bad_cpu_fallback.py", Severity.NOTE),
        ("OOM122/bad_str.py", Severity.WARNING),
        ("OOM122/bad_not_in.py", Severity.NOTE),
        ("OOM123/bad_continue.py", Severity.ERROR),
    ],
)
def test_a_handler_is_as_bad_as_what_it_costs(name: str, severity: Severity) -> None:
    """A retry on the CPU and a text that names no device are notes; a rank that goes on alone is an error."""
    assert severities(name) == [severity]
