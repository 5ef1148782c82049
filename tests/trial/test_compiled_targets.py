"""Targets that compile themselves: what Inductor decides by values is decided on a null GPU as on a card."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

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
