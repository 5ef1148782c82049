"""A command that was checked with a baseline: what grew is told by the phase in which it begins."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import WITHOUT_COMPILER, run_command

pytestmark = pytest.mark.null_gpu

SCRIPT = """
import argparse

import torch
from torch import nn

WIDTH, LENGTH = 256, 512
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size
model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(size, LENGTH, WIDTH, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CONFIGURATION = """
capacity = "1GiB"
target-batch = 2
baseline = true

[[check]]
name = "plain"
command = ["python", "train.py", "--batch-size", "{micro_batch}"]
fresh = true
"""
MODEL = """
import torch
from torch import nn


def build_model():
    return nn.Linear(64, 64)


def make_batch(batch_size):
    return torch.randn(batch_size, 64)


def training_step(model, batch):
    return model(batch).square().mean()
"""

Project = Callable[..., dict[str, Any]]


def checked(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a check, and its one entry."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = run_command(["check", "--json", "--no-cache", *options], cwd=folder, PATH=path, **WITHOUT_COMPILER)
    assert finished.stdout, finished.stderr
    (entry,) = json.loads(finished.stdout)["result"]["entries"]
    return finished.returncode, entry


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose baseline was written twice, the first time's kept as `first.json`."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "oomdoctor.toml").write_text(CONFIGURATION)
    for name in ("first.json", "second.json"):
        code, entry = checked(folder, "--update")
        assert (code, entry["baseline"]) == (0, "updated"), entry
        (folder / name).write_bytes((folder / "oomdoctor-baseline.json").read_bytes())
    return folder


def test_two_updates_write_the_same_bytes(project: Path) -> None:
    """Nothing in the file depends on the run; it has each phase of three steps at the size that was asked about."""
    assert (project / "first.json").read_bytes() == (project / "second.json").read_bytes()
    kept = json.loads((project / "first.json").read_text())["entries"]["plain"]
    assert list(kept["trials"]) == ["2"]
    phases = {f"iteration {number} {phase}" for number in (1, 2, 3) for phase in ("forward", "backward", "optimizer")}
    assert set(kept["trials"]["2"]["phases"]) == {"iteration 0 load", *phases}


@pytest.mark.parametrize(
    ("before", "after", "begins"),
    [
        ("WIDTH, LENGTH = 256, 512", "WIDTH, LENGTH = 512, 512", "iteration 0 load"),
        ("WIDTH, LENGTH = 256, 512", "WIDTH, LENGTH = 256, 1024", "iteration 1 forward"),
        ('torch.autocast("cuda", torch.bfloat16)', 'torch.autocast("cuda", enabled=False)', "iteration 1 forward"),
        ("SGD(model.parameters(), lr=0.1)", "AdamW(model.parameters())", "iteration 1 optimizer"),
    ],
    ids=["wider", "longer", "without autocast", "optimizer state"],
)
def test_what_grew_is_named_by_its_phase(project: Path, before: str, after: str, begins: str) -> None:
    """The check fails, and of the phases that it names the first is the one where the growth begins."""
    assert before in SCRIPT
    (project / "train.py").write_text(SCRIPT.replace(before, after))
    code, entry = checked(project)
    assert (code, entry["verdict"], entry["profiled_micro_batch"]) == (1, "failed", 2)
    phases = [one for one in entry["movements"] if one["kind"] == "phase" and one["is_beyond"]]
    assert phases[0]["name"] == begins
    assert phases[0]["text"].startswith(f"{begins} +")
    assert [limit["name"] for limit in entry["limits"] if not limit["holds"]] == ["baseline"]


def test_an_unchanged_command_moves_nothing(project: Path) -> None:
    """The same script a second time is within the baseline to the byte."""
    (project / "train.py").write_text(SCRIPT)
    code, entry = checked(project)
    assert (code, entry["movements"], entry["baseline"], entry["warnings"]) == (0, [], "compared", [])


def test_a_file_under_a_commands_name_does_not_fit_its_baseline(project: Path) -> None:
    """Nothing is compared, and the limit fails and says why."""
    (project / "model.py").write_text(MODEL)
    text = 'capacity = "1GiB"\ntarget-batch = 2\nbaseline = true\n[[check]]\nname = "plain"\ntarget = "model.py"\n'
    (project / "other.toml").write_text(text)
    code, entry = checked(project, "--config", "other.toml")
    assert (code, entry["movements"]) == (1, [])
    (broken,) = [limit for limit in entry["limits"] if not limit["holds"]]
    assert broken["text"].startswith("the baseline is of a command, and the entry is a file now, so that nothing is")
