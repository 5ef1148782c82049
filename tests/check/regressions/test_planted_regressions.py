"""Regressions planted in a small repository: each fails the check, which names what grew and where."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from running import run_here
from small_repository import change, make_repository

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

Completed = subprocess.CompletedProcess[str]

BASELINE: Final = "oomdoctor-baseline.json"


@dataclass(frozen=True)
class Edit:
    """One change to the repository.

    Attributes:
        file: The file in `train/`.
        old: What stands there.
        new: What comes in its place.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Regression(Edit):
    """A change for the worse.

    Attributes:
        lines: Beginnings and ends of the lines that name it, each a category or a phase and where that grew.
    """

    lines: tuple[tuple[str, str], ...]


LAYERS: Final = "in `encoder.layers.*`"
FEED_FORWARD: Final = "in `encoder.layers.*.feed_forward`"
REGRESSIONS: Final = {
    "a wider layer": Regression(
        "model.py",
        "hidden=4 * WIDTH",
        "hidden=6 * WIDTH",
        (
            ("weights +1.51 MiB", f"+50 % {FEED_FORWARD}"),
            ("gradients +1.51 MiB", f"+50 % {FEED_FORWARD}"),
            ("optimizer state +3.01 MiB", f"+50 % {FEED_FORWARD}"),
            ("activations +", FEED_FORWARD),
        ),
    ),
    "a dropped no_grad": Regression(
        "model.py",
        "with torch.no_grad():  # it is not trained",
        "if True:",
        (("activations +", "most of it in `teacher.blocks.*`"), ("gradients +", "in `teacher.blocks.*.feed_forward`")),
    ),
    "a longer sequence": Regression("model.py", "TOKENS = 128", "TOKENS = 192", (("activations +", LAYERS),)),
    "foreach switched on": Regression(
        "model.py", "foreach=False", "foreach=True", (("iteration 2 optimizer +", "most of it workspace"),)
    ),
    "checkpointing removed": Regression(
        "model.py", "checkpoint(layer, x, use_reentrant=False)", "layer(x)", (("activations +", LAYERS),)
    ),
}
IMPROVED: Final = "a narrower layer"
UNMOVED: Final = "a comment"
EDITS: Final = {
    **REGRESSIONS,
    IMPROVED: Edit("model.py", "hidden=4 * WIDTH", "hidden=3 * WIDTH"),
    UNMOVED: Edit("model.py", "# it is not trained", "# it stays as it is, and nobody trains it"),
}

Outcome = Callable[[str], Completed]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, forked_workers: None) -> Path:
    """The repository with the baseline of its good version."""
    folder = tmp_path_factory.mktemp("good")
    make_repository(folder)
    run = check(folder, "--update")
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def outcome(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return the check of the repository after an edit, by the edit's name; each runs once."""

    @cache
    def run(name: str) -> Completed:
        folder = tmp_path_factory.mktemp("edited")
        shutil.copytree(good, folder, dirs_exist_ok=True)
        change(folder, EDITS[name].file, EDITS[name].old, EDITS[name].new)
        return check(folder)

    return run


def check(folder: Path, *arguments: str) -> Completed:
    """Run `oomdoctor check` as a team would, with lines long enough to be looked for."""
    return run_here(["check", "--no-cache", *arguments], folder, COLUMNS="300")


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_planted_regression_fails_the_check_and_is_named(outcome: Outcome, name: str) -> None:
    """The check exits with 1, and the lines of what is worse have the category and the module that grew.

    Without `no_grad` the size that is compared no longer fits the card, and what grew is named all the same.
    """
    run = outcome(name)
    assert run.returncode == 1, run.stdout + run.stderr
    worse = [line.strip() for line in run.stdout.partition("also changed")[0].splitlines()]
    for start, end in REGRESSIONS[name].lines:
        assert any(line.startswith(start) and line.endswith(end) for line in worse), (start, end, run.stdout)


def test_an_improvement_passes_and_is_told(outcome: Outcome) -> None:
    """Less memory passes, and what fell is told."""
    run = outcome(IMPROVED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "peak allocated -" in run.stdout


def test_a_comment_moves_nothing(outcome: Outcome) -> None:
    """A change that no memory depends on leaves every figure as it is."""
    run = outcome(UNMOVED)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "moved" not in run.stdout
    assert "micro-batch 8" not in run.stdout


def test_two_updates_write_the_same_bytes(good: Path, tmp_path: Path) -> None:
    """On the null GPU an update of an unchanged repository changes no byte of the baseline, wherever it lies."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(good, folder)
    (folder / BASELINE).unlink()
    assert check(folder, "--update").returncode == 0
    assert (folder / BASELINE).read_bytes() == (good / BASELINE).read_bytes()
    assert json.loads((good / BASELINE).read_text(encoding="utf-8"))["entries"]["distil"]["memory"]["micro_batch"] == 8
