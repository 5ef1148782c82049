"""Targets that compile themselves: what Inductor decides by values is decided on a null GPU as on a card."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from oomdoctor.request import build_request
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

TIMED = """
import torch
from torch import nn


def build_model():
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256))
    model.compile(dynamic=False)
    return model


def make_batch(batch_size):
    return torch.randn(batch_size, 256)


def training_step(model, batch):
    return model(batch).square().mean()
"""
"""Its backward has a kernel of several configurations, at a batch of 4 and of 1."""

TIMED_SCRIPT = f"""
import sys
{TIMED}
model = build_model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    training_step(model, make_batch(int(sys.argv[1])).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_L2_BYTES = 75_497_472
"""L2 cache of an RTX 4090."""

SHIFTED = """
import torch
import torch._inductor.config
from torch import nn


class Shifted(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        return [h + SHIFT * n for n in range(3, 11)]


def build_model():
    torch._inductor.config.force_disable_caches = True  # a graph that was compiled before is not folded again
    model = Shifted(512, 512)
    model.compile(dynamic=False)
    return model


def make_batch(batch_size):
    return torch.randn(batch_size, 512)


def training_step(model, batch):
    return sum(shifted.square().mean() for shifted in model(batch))
"""


@pytest.mark.slow
def test_a_constant_that_inductor_computes_is_no_zero(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A tensor of sixes is added as the number 6 is: the result takes memory of its own, and no read is told."""
    answers = {}
    for name, shift in {"number": "2.0", "tensor": "torch.full((512,), 2.0, device=h.device)"}.items():
        (tmp_path / f"{name}.py").write_text(SHIFTED.replace("SHIFT", shift))
        ended = oomdoctor_here("probe", f"{name}.py", "--gpu", "t4", "--target-batch", "4096", "--json")
        assert ended.returncode == 0, ended.stderr
        answers[name] = json.loads(ended.stdout)["result"]

    peaks = {name: [trial["peak_allocated_bytes"] for trial in one["trials"]] for name, one in answers.items()}
    assert peaks["tensor"] == peaks["number"]
    assert [one["warnings"] for one in answers.values()] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_size_is_timed_again_in_each_trial(
    forked_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    """A trial times kernels, which takes memory, although one before timed the same; also where no process helps."""
    del forked_workers
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", threads)
    (tmp_path / "model.py").write_text(TIMED)
    request = build_request("model.py", directory=tmp_path, gpu="rtx-4090", engine="null")
    target = parse_reference("model.py", directory=tmp_path)
    with WorkerTrialSource(request, target, engine_for(request).environment) as source:
        source.load()
        first, second = (source.run(4, micro_steps=1, allowed_bytes=source.capacity_bytes) for _ in range(2))

    assert first.peak_allocated_bytes == second.peak_allocated_bytes > _L2_BYTES
    assert first.timing_bytes == second.timing_bytes == _L2_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("target", ["file", "command"])
def test_what_runs_out_in_timing_says_so(target: str, tmp_path: Path, oomdoctor_here: Run) -> None:
    """Where the buffer with which Inductor times kernels does not fit, the headline and a reason name it."""
    (tmp_path / "model.py").write_text(TIMED)
    (tmp_path / "train.py").write_text(TIMED_SCRIPT)
    asked = ["model.py"] if target == "file" else []
    command = [] if target == "file" else ["--", sys.executable, "train.py", "{micro_batch}"]
    ended = oomdoctor_here("probe", *asked, "--gpu", "rtx-4090", "--capacity", "60MiB", "--target-batch", "4", *command)

    text = " ".join(ended.stdout.replace("┃", " ").split())
    assert "micro-batch 1 runs out in backward, iteration 1, while Inductor times kernels" in text
    assert "with a buffer of 72.00 MiB, the size of the card's L2 cache" in text
