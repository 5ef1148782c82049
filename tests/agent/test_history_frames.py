"""The history names the program's lines where there are any, and loses no event where it saves itself the search."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from agent_running import agent_environment, run_python

from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.run.environment import torch_of

pytestmark = pytest.mark.null_gpu

PROGRAM = Path(__file__).with_name("trainings.py")
PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]


@pytest.fixture(scope="module", params=PYTHONS, ids=lambda python: Path(python).parents[1].name)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What the history has of one step, by the way of training."""
    null_gpu = null_gpu_environment(generic_card(1 << 30), torch_of(request.param, os.environ), os.environ)
    environment = agent_environment(tmp_path_factory.mktemp("frames") / "reports", null_gpu)
    ended = run_python([request.param, str(PROGRAM)], environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = (line.partition("\t") for line in ended.stdout.splitlines())
    return {name: json.loads(text) for name, _, text in lines}


def test_the_first_step_is_recorded_with_frames(told: dict[str, dict]) -> None:
    """The optimizer's state keeps the line that made it, also that of a second optimizer after other steps."""
    assert told["failures"] == []
    for way in ("first", "second_optimizer"):
        assert told[way]["in the optimizer"], way
        assert told[way]["in forward"], way


def test_later_steps_keep_every_event_and_the_lines_of_forward(told: dict[str, dict]) -> None:
    """What is not searched for frames is recorded all the same, so that a replay is complete."""
    first, later, taken_over = told["first"], told["later"], told["taken_over"]

    assert not later["in the optimizer"]
    assert later["in forward"] > 0
    assert (later["allocated"], later["freed"]) == (taken_over["allocated"], taken_over["freed"])
    assert first["allocated"] > later["allocated"]  # the state


def test_forward_after_a_backward_has_frames(told: dict[str, dict]) -> None:
    """Of three micro-steps each has its lines, and so has what follows a backward that failed."""
    assert told["accumulated"]["in forward"] == 3 * told["later"]["in forward"]
    assert told["after_an_error"]["in forward"] > 0


def test_what_python_takes_in_backward_keeps_its_frames(told: dict[str, dict]) -> None:
    """Recomputed activations name the lines that recompute them."""
    assert told["recomputed"]["in backward"]
    assert not told["recomputed"]["in the optimizer"]


def test_a_program_that_records_itself_is_left_alone(told: dict[str, dict]) -> None:
    """Once it says what to record, or that nothing is, nothing of ours changes that, and torch is as it was."""
    assert told["taken_over"]["in the optimizer"]
    assert told["taken_over"]["engine"] == "_EngineBase"
    assert told["ended"] == {"enabled": False}
