"""Edits of an accumulation's boundary."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.module import parse
from oomdoctor.lint.patterns.accumulation import accumulations
from oomdoctor.lint.patterns.edits import shifted_boundary

SCRIPT = """\
import torch


def train(model, loader, optimizer, loss_fn, k, größe=1):
    for i, (x, y) in enumerate(loader{start}):
        loss = loss_fn(model(x), y) / k
        loss.backward()
        {test}:
            optimizer.step()
            optimizer.zero_grad()
"""


def edited(test: str, start: str = "") -> str:
    """The line of the test after the edit; as it was where there is none."""
    text = SCRIPT.format(test=test, start=start)
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    lines = [line.encode() for line in text.split("\n")]
    for edit in shifted_boundary(found):
        assert edit.start[0] == edit.end[0] == 8
        line = lines[7]
        lines[7] = line[: edit.start[1]] + edit.text.encode() + line[edit.end[1] :]
    return lines[7].decode().strip().removesuffix(":")


@pytest.mark.parametrize(
    ("test", "start", "expected"),
    [
        ("if i % k == 0", "", "if (i + 1) % k == 0"),
        ("if i%k==0", "", "if (i + 1)%k==0"),
        ("if (i) % k == 0", "", "if (i + 1) % k == 0"),
        ("if not i % (k)", "", "if not (i + 1) % (k)"),
        ("if (i + 1)  %  k == 0", ", 1", "if i  %  k == 0"),
        ("if (1 + i) % k == 0", ", 1", "if i % k == 0"),
        ("if i % k == k - 1", ", 1", "if (i - 1) % k == k - 1"),
        ("if größe == 1 and i % k == 0", "", "if größe == 1 and (i + 1) % k == 0"),
    ],
)
def test_what_is_divided_is_rewritten_and_nothing_else(test: str, start: str, expected: str) -> None:
    """The counted side is replaced by what counts from one, its parentheses with it; all else stays as it was."""
    assert edited(test, start) == expected


@pytest.mark.parametrize("test", ["if i > 0 and i % k == 0", "if i % k == 0 and i % 7 != 3"])
def test_conditions_that_say_more_of_the_counter_are_left_alone(test: str) -> None:
    """Where a second part of the condition speaks of the counter, no edit is safe."""
    assert edited(test) == test


def test_a_remainder_over_several_lines_is_left_alone() -> None:
    """An edit never joins lines."""
    assert edited("if (i\n            % k) == 0") == "if (i"


def test_a_counter_by_hand_is_left_alone() -> None:
    """Whether the test or the count should move is for the user to say."""
    text = SCRIPT.format(test="if n % k == 0", start="").replace("    for i", "    n = 0\n    for i")
    text += "        n += 1\n"
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    assert found.step_offset == -1
    assert shifted_boundary(found) == ()


def test_lines_that_python_counts_otherwise_are_never_edited_by_mistake() -> None:
    """A lone carriage return ends a line for Python; the line that has that number by line feeds is not touched."""
    text = "# one\r# two\n" + SCRIPT.format(test="if i % k == 0", start="").replace("optimizer.step()", "z = k % k", 1)
    text += "            optimizer.step()\n"
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    assert found.step_offset == -1
    assert shifted_boundary(found) == ()


@pytest.mark.parametrize(
    "more",
    [
        "        if i % k == 0:\n            ema(model)\n",
        "        ema(model, i)\n",
        "        log(i % k)\n",
        "        number = i + 1\n",
        "        if n % k == 0:\n            ema(model)\n",
        "        if n == k:\n            ema(model)\n",
        "    places = [n % k for n in range(9)]\n",
        "    if i % k:\n        optimizer.step()\n",
        "    callback(lambda: i)\n",
    ],
)
def test_no_edit_where_the_counter_decides_something_else(more: str) -> None:
    """A second use that would go by the old boundary takes the edit away."""
    text = SCRIPT.format(test="if i % k == 0", start="") + more
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    assert found.step_offset == -1
    assert shifted_boundary(found) == ()


@pytest.mark.parametrize(
    "more",
    [
        "        print(f'{i} of {len(loader)}')\n",
        "        log.info('%d', i + 1)\n",
        "    for i in range(3):\n        print(i % 2)\n",
        "    print([i for i in range(k) if i % 2])\n",
        "    def show(i):\n        return i % 2\n",
    ],
)
def test_what_only_shows_the_counter_leaves_the_edit(more: str) -> None:
    """Logging, and variables of that name that are others, decide nothing in the loop."""
    text = SCRIPT.format(test="if i % k == 0", start="") + more
    (found,) = [found for run in runs_of(parse(text, Path("train.py"))) for found in accumulations(run)]
    assert len(shifted_boundary(found)) == 1
