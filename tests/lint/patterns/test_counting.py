"""How counters run through loops."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.accumulation import accumulations
from oomdoctor.lint.patterns.counters import LoopCounter

SCRIPT = """\
import torch


def train(model, loader, optimizer, loss_fn, k):
    {before}
    for epoch in range(3):
        {epoch}
        for {target} in {loader}:
            {first}
            loss_fn(model(x), y).backward()
            if {counter} % k == 0:
                optimizer.step()
                {inside}
            {last}
"""


def count(counter: str = "n", target: str = "x, y", loader: str = "loader", **lines: str) -> LoopCounter | None:
    """How the counter of a script runs, lines of which are given by their place."""
    places = dict.fromkeys(("before", "epoch", "first", "inside", "last"), "pass") | lines
    text = SCRIPT.format(counter=counter, target=target, loader=loader, **places)
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    return found.count


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"before": "n = 0", "first": "n += 1"}, LoopCounter(1, by_hand=True, restarts=False)),
        ({"before": "n = 0", "last": "n += 1"}, LoopCounter(0, by_hand=True, restarts=False)),
        ({"epoch": "n = 5", "last": "n = n + 1"}, LoopCounter(5, by_hand=True, restarts=True)),
        ({"before": "n = 0", "first": "n = 1 + n", "inside": "n = 0"}, LoopCounter(1, by_hand=True, restarts=False)),
        ({"before": "n = k", "first": "n += 1"}, LoopCounter(None, by_hand=True, restarts=False)),
        ({"before": "n = 0", "epoch": "n = 3", "first": "n += 1"}, LoopCounter(None, by_hand=True, restarts=False)),
        ({"first": "n += 1"}, LoopCounter(None, by_hand=True, restarts=None)),
    ],
)
def test_a_counter_by_hand_is_read(lines: dict[str, str], expected: LoopCounter) -> None:
    """Where it begins, whether it counts before the test, and whether each epoch sets it anew are told."""
    assert count(**lines) == expected


@pytest.mark.parametrize(
    "lines",
    [
        {"before": "n = 0", "first": "n += 2"},
        {"before": "n = 0", "first": "n += len(x)"},
        {"before": "n = 0", "first": "if x.any(): n += 1"},
        {"before": "n = 0", "first": "n += 1", "last": "n += 1"},
        {"before": "n = 0", "first": "n += 1", "inside": "n = 1"},
        {"before": "n = 0", "first": "n += 1", "inside": "n = k"},
        {"before": "n = 0", "first": "n -= 1"},
        {"before": "n = 0"},
    ],
)
def test_what_does_not_count_by_one_is_no_counter(lines: dict[str, str]) -> None:
    """Other steps, conditional ones, two of them, and counters set to something in between are not read."""
    assert count(**lines) is None


@pytest.mark.parametrize(
    ("target", "loader", "before", "first"),
    [
        ("n, (x, y)", "enumerate(loader)", "pass", 0),
        ("n, (x, y)", "enumerate(loader, 4)", "pass", 4),
        ("n, (x, y)", "enumerate(loader, k)", "pass", None),
        ("n, (x, y)", "bar", "bar = tqdm(enumerate(loader), total=9)", 0),
        ("n, (x, y)", "bar", "bar = enumerate(loader); bar = tqdm(bar)", 0),
    ],
)
def test_the_loop_s_own_counter_is_read(target: str, loader: str, before: str, first: int | None) -> None:
    """`enumerate` is seen with its start, and through a progress bar that has a name."""
    assert count(target=target, loader=loader, before=before) == LoopCounter(first, by_hand=False, restarts=True)


@pytest.mark.parametrize("before", ["bar = enumerate(loader, 1)", "bar = enumerate(loader); bar = skip(bar)", "pass"])
def test_a_bar_that_may_count_otherwise_is_not_read(before: str) -> None:
    """What a name goes over is only known where all that it is set to is known."""
    assert count(target="n, (x, y)", loader="bar", before=before) is None


def test_a_loop_s_counter_that_is_changed_is_not_read() -> None:
    """A counter that the body sets as well is anybody's guess."""
    assert count(target="n, (x, y)", loader="enumerate(loader)", first="n += epoch") is None
