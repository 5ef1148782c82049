"""The project's own workflow: it runs what must pass before a change lands, and may do nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from github_runner import Runner, steps_of
from running import ROOT

TEXT = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS = {name: steps_of(TEXT, name) for name in WORKFLOW["jobs"]}
RUNS = [step["run"] for steps in JOBS.values() for step in steps if "run" in step]


def test_it_runs_for_pull_requests_and_may_only_read() -> None:
    """Pull requests and pushes to the main branch start it; it gets no permission but to read."""
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert WORKFLOW[True] == {"push": {"branches": ["main"]}, "pull_request": None}  # YAML 1.1 takes `on` for true
    assert all("permissions" not in job for job in WORKFLOW["jobs"].values())


def test_actions_of_others_are_pinned() -> None:
    """Each action of others is one of GitHub's own, by a version; each job checks the repository out first."""
    for steps in JOBS.values():
        used = [step["uses"] for step in steps if "uses" in step]
        assert used[0].startswith("actions/checkout@")
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_it_runs_all_that_make_check_does() -> None:
    """Style, types, the quick tests, the whole suite and the CPU build: nothing of `make check` is left out."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    needed = re.search(r"^check: ([a-z -]+?)  ##", makefile, re.MULTILINE)
    assert needed is not None
    targets = {run.removeprefix("make ") for run in RUNS}
    assert {*needed[1].split(), "quick"} <= targets


@pytest.mark.parametrize("script", RUNS)
def test_each_step_is_a_target_that_make_knows(script: str, tmp_path: Path) -> None:
    """Each step runs one target of the Makefile, and nothing that a pull request could put into it."""
    assert re.fullmatch(r"make [a-z-]+", script)
    ended = Runner(ROOT, tmp_path).run(f"{script} --dry-run", {})
    assert ended.code == 0, ended.log
    assert ended.log.strip()


def test_a_step_without_a_target_fails(tmp_path: Path) -> None:
    """A step whose target is misspelt fails, so that the test above can."""
    assert Runner(ROOT, tmp_path).run("make tset --dry-run", {}).code != 0
