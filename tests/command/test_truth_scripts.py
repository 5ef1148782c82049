"""Scripts as their frameworks' documentation writes them: the probe's answer is what their own runs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import run_command
from truth import IN_THE_SUITE, SCRIPTS, TARGET_BATCH, Script, fits, largest, null_environment, peaks

pytestmark = pytest.mark.null_gpu

_GPU = "rtx-3060-12gb"
_MEMORY_BYTES = 112 * 1024**2
_SMALL = Script(
    "small/plain_loop.py",
    ("--batch-size", "{micro_batch}", "--grad-accum", "{accumulation_steps}"),
    ("--steps", "{steps}"),
)


def _answer(directory: Path, words: list[str], *options: str) -> int:
    finished = run_command(["probe", *options, "--json", "--quiet", "--", *words], cwd=directory, timeout=290)
    assert finished.returncode == 0, finished.stderr
    return int(json.loads(finished.stdout)["result"]["micro_batch"]["maximum"])


@pytest.mark.slow
@pytest.mark.parametrize("script", IN_THE_SUITE, ids=lambda script: script.name)
def test_the_answer_fits_by_hand_and_the_next_size_does_not(script: Script, tmp_path: Path) -> None:
    """The script, run by itself, comes to its end at the size that the probe found and runs out at the next."""
    options = ("--target-batch", str(TARGET_BATCH), "--gpu", _GPU)
    maximum = _answer(tmp_path, script.template(), *options)
    environment = null_environment(_GPU)
    assert fits(script, maximum, environment)
    assert not fits(script, maximum + 1, environment)


@pytest.mark.slow
def test_the_answer_is_the_bisection_of_unhooked_runs(tmp_path: Path) -> None:
    """On a small card the whole bisection by hand ends at the probe's answer."""
    maximum = _answer(tmp_path, _SMALL.template(), "--target-batch", "256", "--capacity", f"{_MEMORY_BYTES}B")
    environment = null_environment(None, memory_bytes=_MEMORY_BYTES)
    assert largest(lambda size: fits(_SMALL, size, environment)) == maximum


def test_a_run_by_hand_knows_what_the_host_has_made() -> None:
    """A mask that a GPU does without, since positions count up, is not in the peak of a run by hand either."""
    script = Script("small/counts_positions.py", ("--batch-size", "{micro_batch}"), ("--steps", "{steps}"))
    environment = null_environment(None, memory_bytes=1024**3)

    assert peaks(script, 1, environment)["allocated"] < 256 * 1024**2  # which the mask alone would take


@pytest.mark.parametrize("truth", range(18))
def test_a_bisection_finds_every_largest_size(truth: int) -> None:
    """Whatever the largest size is, none and the limit included, the bisection of the truth finds it."""
    assert largest(lambda size: size <= truth, limit=17) == truth


def test_a_run_by_hand_accumulates_below_the_target_alone() -> None:
    """A run by hand takes two accumulation steps below the target and one at it."""
    assert _SMALL.command(8, 16)[-5:] == ["8", "--grad-accum", "2", "--steps", "3"]
    assert _SMALL.command(16, 16)[-5:] == ["16", "--grad-accum", "1", "--steps", "3"]
    assert _SMALL.command(8)[1] == str(SCRIPTS / "small/plain_loop.py")
