"""What was said of lint's findings in well-known projects, and what was counted there."""

from __future__ import annotations

import json

from lint_precision import judgements
from running import ROOT

RESULTS = json.loads((ROOT / "tests/bench/results/lint_precision.json").read_text(encoding="utf-8"))


def test_every_finding_that_was_counted_is_judged_true_with_a_reason() -> None:
    """Of each project and rule with findings somebody has said why they are true; none is false or unjudged."""
    table = judgements()
    true = {(project, code) for (project, _, code, _), judged in table.items() if judged.verdict == "true"}
    counted = {
        (project["project"], code, verdict)
        for project in RESULTS["projects"]
        for code, verdicts in project["findings"].items()
        for verdict in verdicts
    }
    assert counted
    assert {verdict for _, _, verdict in counted} == {"true"}
    assert {(project, code) for project, code, _ in counted} <= true
    assert all(len(judged.reason) > 20 for judged in table.values())


def test_at_least_ten_projects_were_read() -> None:
    """More than two million lines of at least ten projects were linted, and every file could be read."""
    assert len(RESULTS["projects"]) >= 10
    assert sum(project["lines"] for project in RESULTS["projects"]) > 2_000_000
    assert not any(project["unreadable"] for project in RESULTS["projects"])
