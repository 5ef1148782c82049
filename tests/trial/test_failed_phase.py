"""The phase and the step in which a trial ran out are those that the answer names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

# Sixty MiB a sample in the forward of the fourth step, which is run since the allocator gives back its cache before.
TARGET = """
import itertools
import torch

steps = itertools.count(1)


def build_model():
    return torch.nn.Linear(8, 8)


def build_optimizer(model):  # in each trial
    global steps
    steps = itertools.count(1)
    return torch.optim.SGD(model.parameters())


def make_batch(size):
    return torch.zeros(size, 8)


def training_step(model, batch):
    kept = torch.empty(100 << 20, dtype=torch.uint8, device=batch.device)
    del kept
    kept = torch.empty(130 << 20, dtype=torch.uint8, device=batch.device)
    if next(steps) == 4:
        more = torch.empty(len(batch) * 60 << 20, dtype=torch.uint8, device=batch.device)
    return model(batch).mean()
"""


def test_what_fails_in_a_later_step_is_named_with_it(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A forward that runs out in the fourth step is neither the optimizer's nor the second's."""
    (tmp_path / "model.py").write_text(TARGET)
    ended = oomdoctor_here("probe", "model.py", "--capacity", "200MiB", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["result"]
    failed = next(trial for trial in found["trials"] if trial["micro_batch"] == found["micro_batch"]["maximum"] + 1)
    assert (failed["phases"][-1]["iteration"], failed["phases"][-1]["phase"]) == (4, "forward")
    assert "runs out in forward, iteration 4" in oomdoctor_here("probe", "model.py", "--capacity", "200MiB").stdout
