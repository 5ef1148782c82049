"""Every way for a program to end for want of memory is reported, and no way to go on is."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

import pytest
from agent_running import SCENARIOS, agent_environment, read_reports, run_python

from oomdoctor.engines.choice import choose_engine

pytestmark = pytest.mark.null_gpu

# Name, exit code, how the report says it ended; None where there is to be no report.
ENDINGS = {
    "unhandled": (1, "exception"),
    "swallowed_then_died": (1, "exception"),
    "wrapped": (1, "exception"),
    "group": (1, "exception"),
    "hook_installed_later": (1, "exception"),
    "hook_installed_after_oom": (1, "exception"),
    "hostile_hook": (1, "exception"),
    "logged_exit": (3, "exit"),
    "thread": (1, "thread"),
    "forked_child": (1, "child process"),
    "spawned_child": (1, "child process"),
    "driver_error": (1, "exception"),
    "host_memory": (1, "exception"),
    "survived": (0, None),
    "caught_exit": (0, None),
    "exit_with_success": (0, None),
    "swallowed_then_other_error": (1, None),
    "left_at_once": (9, None),
    "interrupted": (-2, None),
    "unprintable": (1, None),
}

_TOLD = re.compile(r"^(\w+) (\d+) (-?\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What became of the scenarios."""

    exit_codes: dict[str, int]
    reports: dict[str, dict]
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Every scenario in a process of its own, forked from one that has imported torch."""
    directory = tmp_path_factory.mktemp("endings") / "reports"
    engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=1 << 30, base=os.environ)
    # Without a history, since the first snapshot that has one takes a second.
    environment = agent_environment(directory, engine.environment, OOMDOCTOR_RUN_MAX_ENTRIES="0")
    ended = run_python([sys.executable, str(SCENARIOS), *ENDINGS], environment)
    told = {int(pid): (name, int(code)) for name, pid, code in _TOLD.findall(ended.stdout)}
    assert {name for name, _ in told.values()} == set(ENDINGS), ended.stderr
    reports = {}
    for pid, report in read_reports(directory).items():
        spawned = "spawn_main" in " ".join(report["argv"])
        reports[told[pid][0] if pid in told else "spawned_child" if spawned else "forked_child"] = report
    return Outcome(dict(told.values()), reports, ended.stdout, ended.stderr)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending_is_reported_and_going_on_is_not(outcome: Outcome, name: str) -> None:
    """The exit code is the program's own, and there is a report where nobody handled the error."""
    exit_code, ending = ENDINGS[name]

    assert outcome.exit_codes[name] == exit_code
    assert outcome.reports.get(name, {}).get("ending") == ending
    if ending is not None:
        assert outcome.reports[name]["failures"] == []


def test_a_report_tells_what_memory_was(outcome: Outcome) -> None:
    """Message, statistics, steps and the categories of live tensors are in the report of a training that died."""
    report = outcome.reports["unhandled"]

    assert report["type"] == "torch.OutOfMemoryError"
    assert "Tried to allocate" in report["message"]
    assert "run_out()" in report["traceback"]
    assert report["steps_done"] == 3
    assert [step["step"] for step in report["last_steps"]] == [1, 2, 3]
    # Weight and bias, and of each a step and two moments; AdamW's step counts lie on the host.
    assert sorted(report["categories"].values()) == ["optimizer_state"] * 4 + ["weights"] * 2
    assert report["devices"][0]["allocated_bytes"] >= 3 * 64 * 65 * 4
    assert report["snapshot"] == "snapshot.pickle"


def test_swallowed_errors_are_told_apart(outcome: Outcome) -> None:
    """Of three times that memory ran out, the program went on after two."""
    report = outcome.reports["swallowed_then_died"]

    assert report["ooms"] == 3
    assert [event["swallowed"] for event in report["oom_events"]] == [True, True, False]


def test_hooks_of_the_program_run_as_without_us(outcome: Outcome) -> None:
    """A hook that the program installs is called once, before memory runs out or after; one that fails fails aloud."""
    assert outcome.stdout.splitlines().count("own hook") == 2
    assert "RuntimeError: the hook fails" in outcome.stderr
