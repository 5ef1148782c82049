"""Memory that grows from step to step is never an answer in silence."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

# A sample's output has 256 KiB.
TARGET = """
import torch
from collections import deque
from torch import nn

kept = {kept}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.history = []

    def forward(self, x):
        y = self.linear(x)
        {in_forward}
        return y


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.zeros(batch_size, 256, 256)


def training_step(model, batch):
    output = model(batch)
    {in_step}
    return output.mean()
"""


def _probed(
    oomdoctor_here: Run,
    tmp_path: Path,
    *options: str,
    kept: str = "[]",
    in_forward: str = "pass",
    in_step: str = "pass",
) -> Any:
    (tmp_path / "model.py").write_text(TARGET.format(kept=kept, in_forward=in_forward, in_step=in_step))
    ended = oomdoctor_here("probe", "model.py", "--target-batch", "128", "--capacity", "160MiB", "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["result"]


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
@pytest.mark.parametrize(
    ("place", "holder"),
    [
        ({"in_step": "kept.append(output.detach())"}, r"`kept` \(model.py:31\)"),
        ({"in_forward": "self.history.append(y.detach())"}, r"`history` \(model.py:17\)"),
    ],
)
def test_a_leak_is_reported(
    oomdoctor_here: Run, tmp_path: Path, place: dict[str, str], holder: str, options: tuple[str, ...]
) -> None:
    """Bytes a step, what holds them, and the step in which the answer runs out."""
    found = _probed(oomdoctor_here, tmp_path, *options, **place)
    maximum = found["micro_batch"]["maximum"]
    leaked = re.fullmatch(
        rf"a leak: micro-batch {maximum} keeps ([\d.]+) MiB more with each optimizer step, and runs out of "
        rf"memory in step (\d+)( at the latest)?; {holder} holds it",
        found["warnings"][0],
    )
    assert leaked, found["warnings"]
    micro_steps = 2 if maximum < 128 else 1
    assert float(leaked[1]) == pytest.approx(maximum * micro_steps * 0.25, rel=0.02)
    assert 3 <= int(leaked[2]) <= 8
    assert not any("new process" in warning for warning in found["warnings"])


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
def test_a_leak_of_losses_keeps_whole_blocks(oomdoctor_here: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    """A list of losses takes 512 bytes each, the least that PyTorch hands out, though each is of 4 bytes."""
    kept = "kept.append(output.mean().detach())"
    found = _probed(oomdoctor_here, tmp_path, "--target-batch", "4", *options, in_step=kept)
    leaked = re.match(r"a leak: micro-batch 4 keeps 512 bytes more with each optimizer step", found["warnings"][0])
    assert leaked, found["warnings"]


def test_a_long_queue_is_no_leak(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A queue that is full after seventy steps is waited for at the first size."""
    queue = {"kept": "deque(maxlen=140)", "in_step": "kept.append(output.detach())"}
    found = _probed(oomdoctor_here, tmp_path, "--capacity", "400MiB", **queue)
    assert "growth ends in optimizer step 7" in found["warnings"][0]


def test_growth_that_ends_raises_the_peak(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A queue of the last 20 outputs is full after some steps, and the answer is what fits then."""
    found = _probed(oomdoctor_here, tmp_path, kept="deque(maxlen=20)", in_step="kept.append(output.detach())")
    plain = _probed(oomdoctor_here, tmp_path)
    maximum = found["micro_batch"]["maximum"]
    assert 0 < maximum < plain["micro_batch"]["maximum"] / 2
    assert "growth ends in optimizer step 1" in found["warnings"][0]
    peak = max(trial["peak_allocated_bytes"] for trial in found["trials"] if trial["micro_batch"] == maximum)
    assert peak >= 20 * maximum * 2**18


@pytest.mark.parametrize(
    "in_step", ["kept.setdefault('cache', torch.ones(2**20, device=batch.device))", "kept[0] = output"]
)
def test_a_harmless_cache_says_nothing(oomdoctor_here: Run, tmp_path: Path, in_step: str) -> None:
    """What is made once, or replaced in each step, is there from the second step on, which every trial takes."""
    found = _probed(oomdoctor_here, tmp_path, kept="{}", in_step=in_step)
    assert found["warnings"] == []
    assert found["micro_batch"]["maximum"] > 0


# A step's rows are always the same; from the third step on they come in other parts.
PARTS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        self.calls += 1
        parts = {later} if self.calls > 2 else 4
        return sum(self.linear(part).relu().sum() for part in x.tensor_split(parts))


def build_model():
    return Model()


def make_batch(batch_size):
    return torch.randn(64 * batch_size, 1024)


def build_optimizer(model):
    model.calls = 0
    return torch.optim.AdamW(model.parameters())
"""


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
def test_a_size_at_the_edge_is_tried_for_more_steps(
    oomdoctor_here: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Where the allocator gave back its cache in two steps, blocks may be in each other's way in the third."""
    answers = []
    for later in (4, 2):
        (tmp_path / "model.py").write_text(PARTS.format(later=later))
        ended = oomdoctor_here("probe", "model.py", "--capacity", "160MiB", "--json", *options)
        answers.append(json.loads(ended.stdout)["result"]["micro_batch"]["maximum"])
    assert 0 < answers[1] < answers[0]
