"""Sizes besides the batch in a command: `--over` and `--largest` of a placeholder that the command has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_running import PYTHON
from running import Run

pytestmark = pytest.mark.null_gpu

_LOOP = """
import sys
import torch

LENGTH = 64
samples, length, heeded = int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) == 3
if length > 10240:
    raise ValueError(f"{length} positions")
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    batch = torch.zeros(samples, length if heeded else LENGTH, 64, device="cuda")
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_CARD = ("--gpu", "rtx-4090", "--capacity", "64MiB")
_COMMAND = (PYTHON, "loop.py", "{micro_batch}", "{length}")


@pytest.fixture
def run(tmp_path: Path, oomdoctor_here: Run) -> Run:
    """The command line in a directory with the loop."""
    (tmp_path / "loop.py").write_text(_LOOP)
    return oomdoctor_here


def _cells(ended: Any) -> list[dict[str, Any]]:
    assert ended.returncode == 0, ended.stderr
    cells: list[dict[str, Any]] = json.loads(ended.stdout)["result"]["cells"]
    return cells


def _fits(run: Run, samples: int, length: int) -> bool:
    """Whether a probe with that length, as a constant in its words, finds that so many samples fit."""
    words = (PYTHON, "loop.py", "{micro_batch}", str(length))
    answered = json.loads(run("probe", *_CARD, "--target-batch", str(samples), "--json", "-q", "--", *words).stdout)
    return bool(answered["result"]["micro_batch"]["maximum"] >= samples)


def test_the_largest_length_of_a_command_is_its_edge(run: Run) -> None:
    """At the micro-batch that was given the answer fits, and the next multiple does not, by probes of their own."""
    largest = ("--largest", "length", "--micro-batch", "8", "--multiple-of", "64", "--json", "-q")
    (cell,) = _cells(run("probe", *_CARD, *largest, "--", *_COMMAND))
    assert (cell["maximum"] % 64, cell["limited_by"]) == (0, "memory")
    assert 0 < cell["recommended"] <= cell["maximum"]
    assert _fits(run, 8, cell["maximum"])
    assert not _fits(run, 8, cell["maximum"] + 64)


def test_the_command_itself_ends_the_search(run: Run) -> None:
    """What raises above some length is the command's limit; steps that accumulate nothing but the target are plain."""
    largest = ("--largest", "length", "--micro-batch", "1", "--multiple-of", "2048", "--json", "-q")
    (limited,) = _cells(run("probe", *_CARD, "--target-batch", "1", *largest, "--", *_COMMAND))
    assert (limited["maximum"], limited["limited_by"]) == (10240, "limit")
    assert "12288 positions" in "".join(limited["notes"])


def test_the_first_length_of_a_command_may_be_too_long(run: Run) -> None:
    """Where the script raises at four multiples, one is tried before the probe gives up."""
    largest = ("--largest", "length", "--micro-batch", "1", "--multiple-of", "5000", "--json", "-q")
    (limited,) = _cells(run("probe", *_CARD, *largest, "--", *_COMMAND))
    assert (limited["maximum"], limited["limited_by"]) == (10000, "limit")
    refused = run("probe", *_CARD, *largest[:4], "--multiple-of", "10241", "-q", "--", *_COMMAND)
    assert (refused.returncode, "length 10241 fails" in refused.stderr) == (2, True)


def test_a_literal_is_searched_and_varied(run: Run) -> None:
    """A size that is a literal of the script is set in each trial, searched up to a bound or given."""
    unheeded = (*_COMMAND[:3], "1", "--literal")
    literal = ("--set", "loop.py:LENGTH={length}", "--json", "-q")
    asked = ("--largest", "length", "--micro-batch", "8", "--multiple-of", "64", "--up-to", "128")
    (cell,) = _cells(run("probe", *_CARD, *literal, *asked, "--", *unheeded))
    assert (cell["maximum"], cell["limited_by"]) == (128, "target")
    cells = _cells(run("probe", *_CARD, *literal, "--over", "length=64,128", "--", *unheeded))
    assert cells[0]["maximum"] > cells[1]["maximum"] > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((PYTHON, "loop.py", "{micro_batch}", "64"), "`--largest length`: the command has no `{length}`"),
        ((PYTHON, "loop.py", "8", "{length}"), "has no `{micro_batch}`"),
        ((*_COMMAND, "unheeded"), "the command does not heed `{length}`: at 256 and at "),
    ],
)
def test_a_command_that_is_not_told_its_length_is_refused(run: Run, words: tuple[str, ...], error: str) -> None:
    """It has to have both placeholders, and to train otherwise where the length is another."""
    largest = ("--largest", "length", "--micro-batch", "8", "--multiple-of", "64", "-q")
    ended = run("probe", *_CARD, *largest, "--", *words)
    assert (ended.returncode, error in ended.stderr) == (2, True), ended.stderr
