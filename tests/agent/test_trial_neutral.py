"""A program does and sees in a trial what it does and sees without one, and its peaks and phases are told exactly."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from listening import Listener, run_trial

from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.run.environment import torch_of

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("trial_programs.py")
PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]
EAGER = ("accumulated", "clipped", "recomputed_reentrantly", "recomputed", "scaled", "closure", "in_eval_mode")
COMPILED = ("compiled_module", "compiled_function")
ON_CPU = (*EAGER, "evaluated")
ON_GPU = (*EAGER, *COMPILED, "resets_peaks", "evaluated", "records_history", "phases")


@dataclass
class Told:
    """What a program printed without the agent and with it, and what the agent said."""

    plain: dict[str, str]
    hooked: dict[str, str]
    listener: Listener
    pids: dict[str, int]

    def measured(self, way: str) -> dict[str, Any]:
        """The last word of one way to train."""
        (message,) = self.listener.named("measured", self.pids[way])
        return message


def _lines(text: str) -> dict[str, str]:
    return dict(line.split("\t") for line in text.splitlines())


def _run(python: str, device: str, ways: tuple[str, ...], base: dict[str, str], steps: str) -> Told:
    command = [python, str(PROGRAM), device, *ways]
    plain = subprocess.run(command, env=base, capture_output=True, text=True, check=True, timeout=200)
    hooked, listener = run_trial(command, base, OOMDOCTOR_TRIAL_STEPS=steps)
    assert hooked.returncode == 0
    noted = [line.split(" ") for line in hooked.stderr.splitlines()]
    assert [name for name, _ in noted] == list(ways)  # and no warning between them
    return Told(_lines(plain.stdout), _lines(hooked.stdout), listener, {name: int(pid) for name, pid in noted})


@pytest.fixture(scope="module", params=PYTHONS, ids=lambda python: Path(python).parents[1].name)
def told(request: pytest.FixtureRequest) -> Told:
    """Every way to train on the null GPU."""
    base = null_gpu_environment(generic_card(1 << 30), torch_of(request.param, os.environ), os.environ)
    return _run(request.param, "cuda", ON_GPU, base, "99")


def test_losses_on_a_cpu_are_the_same() -> None:
    """To the last digit, whatever the loop does."""
    cpu = _run(sys.executable, "cpu", ON_CPU, {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, "99")

    assert cpu.hooked == cpu.plain
    assert len({ast.literal_eval(line)[0][-1] for line in cpu.plain.values()}) > 3  # they are losses of real training
    assert all(cpu.measured(way)["steps"] == 4 for way in ON_CPU)
    assert not any(cpu.measured(way)["cuda"] for way in ON_CPU)


def test_peaks_are_the_same(told: Told) -> None:
    """Allocated and reserved, to the byte, also where code is compiled or the peaks are reset."""
    assert told.hooked == told.plain


@pytest.mark.parametrize("way", ON_GPU)
def test_the_peak_is_told(way: str, told: Told) -> None:
    """It is the program's own figure, or the highest of those that it reset."""
    own, (peak, _, reserved) = ast.literal_eval(told.plain[way])
    earlier = {"resets_peaks": own, "phases": [one[2] for one in own] if way == "phases" else []}.get(way, [])
    message = told.measured(way)

    assert message["peak_allocated_bytes"] == max([peak, *earlier])
    assert message["peak_reserved_bytes"] == reserved
    assert (message["ending"], message["steps"], message["failures"]) == ("exit", 4, [])


def test_phases_are_those_that_resets_find(told: Told) -> None:
    """Each phase's peak is what the program finds that resets the peaks at every border, and its end nearly so."""
    own = ast.literal_eval(told.plain["phases"])[0][1:]  # the first batch is loaded with the model here
    phases = told.measured("phases")["phases"][1:]

    assert [list(phase.values())[:3] for phase in phases] == [one[:3] for one in own]
    # `backward()` makes a block before its engine begins, and frees it after that has ended.
    assert [phase["end_allocated_bytes"] for phase in phases] == pytest.approx([one[3] for one in own], abs=512)


@pytest.mark.parametrize("way", [*EAGER, *COMPILED])
def test_every_step_has_its_phases(way: str, told: Told) -> None:
    """A forward, a backward and an optimizer's step in each of four iterations, and loading before them."""
    message = told.measured(way)
    names = {(phase["iteration"], phase["phase"]) for phase in message["phases"]}

    expected = {(step, name) for step in range(1, 5) for name in ("forward", "backward", "optimizer")}
    assert names == expected | {(0, "load")}
    assert message["training_peak_bytes"] == message["peak_allocated_bytes"]
    assert message["evaluation_peak_bytes"] is None


def test_gradients_that_accumulate_are_fixed(told: Told) -> None:
    """What stays between micro-steps holds the gradients where there are several, and not where there is one."""
    several, one = told.measured("accumulated"), told.measured("clipped")

    gradients = several["gradient_bytes"]
    assert several["parameter_bytes"] == gradients == one["gradient_bytes"] > 1_000_000
    assert several["fixed_bytes"] - one["fixed_bytes"] == pytest.approx(gradients, rel=0.05)


def test_an_evaluation_is_told_apart(told: Told) -> None:
    """It needs more memory than training here, and its peak is the process's; a mode by itself makes none."""
    message = told.measured("evaluated")

    assert message["evaluation_peak_bytes"] == message["peak_allocated_bytes"] > message["training_peak_bytes"]
    assert message["training_peak_bytes"] == told.measured("accumulated")["training_peak_bytes"]
    assert told.measured("in_eval_mode")["phases"] == told.measured("accumulated")["phases"]


def test_a_program_that_records_history_has_no_phases(told: Told) -> None:
    """Its history is its own; the rest is told."""
    message = told.measured("records_history")

    assert message["phases"] == []
    assert message["training_peak_bytes"] is message["fixed_bytes"] is None
    assert message["peak_allocated_bytes"] == told.measured("accumulated")["peak_allocated_bytes"]


@pytest.mark.parametrize("way", [*EAGER, *COMPILED, "evaluated"])
def test_the_first_batch_is_told(way: str, told: Told) -> None:
    """Also where it is passed by name, and where what it is passed to is compiled."""
    batches = told.listener.named("batch", told.pids[way])

    if way == "evaluated":
        assert [one["training"] for one in batches] == [False, True]
    else:
        assert [one["training"] for one in batches] == [way != "in_eval_mode"]
    assert all([96, 333] in one["shapes"] for one in batches)
