"""How bad the findings of the rules about memory are, and where they point."""

from __future__ import annotations

from pathlib import Path

import lint_cases
import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL
from oomdoctor.results import Severity


def severities(name: str) -> list[tuple[str, Severity]]:
    """Code and severity of each finding of a case, in order."""
    text = lint_cases.case(name).text
    hits = check_module(parse(text, Path("case.py")), [rule for rule in ALL if rule.default])
    return [(rule.code, hit.severity or rule.severity) for rule, hit in hits]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OOM102/bad_total", [("OOM102", Severity.WARNING)]),
        ("OOM102/bad_other_fraction", [("OOM102", Severity.WARNING)]),
        ("OOM102/bad_outputs_for_metrics", [("OOM102", Severity.WARNING)]),
        ("OOM102/bad_several_tasks", [("OOM102", Severity.WARNING)]),
        ("OOM102/bad_never_used", [("OOM102", Severity.ERROR)]),
        ("OOM102/bad_validation", [("OOM101", Severity.ERROR), ("OOM102", Severity.ERROR)]),
    ],
)
def test_a_graph_that_has_had_its_backward_pass_is_milder(name: str, expected: list[tuple[str, Severity]]) -> None:
    """A loss that is kept is an error where all of its activations stay, and a warning where its nodes alone do."""
    assert severities(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OOM111/good_weights_alone", []),
        ("OOM111/bad_weights", [("OOM111", Severity.ERROR)]),
        ("OOM111/bad_resume", [("OOM111", Severity.WARNING)]),
        ("OOM111/bad_distributed", [("OOM111", Severity.ERROR)]),
        ("OOM111/bad_spawned", [("OOM111", Severity.ERROR)]),
    ],
)
def test_loading_is_worse_with_an_optimizer_and_worst_in_many_processes(
    name: str, expected: list[tuple[str, Severity]]
) -> None:
    """Weights alone are no finding, a training state is a warning, and a load by every process an error."""
    assert severities(name) == expected
