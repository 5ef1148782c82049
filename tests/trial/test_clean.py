"""A trial leaves no byte behind, wherever it ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

# Even sizes run out, each in another place; odd ones fit.
TARGET = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

PLACES = ("forward", "backward", "optimizer", "function", "checkpoint")
place = None


def hog(x):
    kept = [torch.empty(2**20, device=x.device) for _ in range(8)]
    return x + torch.empty(2**40, device=x.device)[0] + kept[0][0]


class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return hog(x) if place == "function" else x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return hog(gradient) if place == "backward" else gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        # The second call is the one that checkpointing makes in the backward pass; it may stop right after `linear`.
        recomputing = self.calls % 2 == 0
        return self.linear(hog(x) if place == "checkpoint" and recomputing else x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(512, 512), Block(), nn.Linear(512, 512)

    def forward(self, x):
        self.block.calls = 0
        x = checkpoint(self.block, self.first(x), use_reentrant=USE_REENTRANT)
        x = self.last(Hungry.apply(x))
        return hog(x) if place == "forward" else x


class HungryAdamW(torch.optim.AdamW):
    def step(self, closure=None):
        super().step(closure)
        if place == "optimizer":
            hog(self.param_groups[0]["params"][0])


def build_model():
    return Model()


def make_batch(batch_size):
    global place
    place = None if batch_size % 2 else PLACES[(batch_size // 2) % len(PLACES)]
    return torch.randn(batch_size, 512)


def training_step(model, batch):
    return model(batch).mean()


def build_optimizer(model):
    return HungryAdamW(model.parameters())
"""


@pytest.mark.parametrize("reentrant", [False, True])
def test_fifty_trials_in_one_worker_start_from_the_same_byte(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]], reentrant: bool
) -> None:
    """Of 50 trials in one worker half run out, in five different places, and each leaves memory as it was."""
    (tmp_path / "model.py").write_text(TARGET.replace("USE_REENTRANT", str(reentrant)))
    request = ProbeRequest(target="model.py", directory=tmp_path, target_batch=64)
    reference = parse_reference("model.py", directory=tmp_path)
    with WorkerTrialSource(request, reference, null_environment(2 * 1024**3)) as supervisor:
        start = supervisor.load().held
        outcomes, phases = [], set()
        for micro_batch in range(1, 51):
            trial = supervisor.run(micro_batch, micro_steps=2, allowed_bytes=supervisor.capacity_bytes)
            assert supervisor.held == start, f"micro-batch {micro_batch}"
            outcomes.append(trial.outcome)
            if trial.outcome is Outcome.OOM:
                failed = trial.phases[-1]
                phases.add(failed.phase.value)
                assert failed.end_allocated_bytes == failed.peak_allocated_bytes, "what unwinding frees is chance"
        assert supervisor.notes.replaced == 0

    assert outcomes == [Outcome.FITS, Outcome.OOM] * 25
    assert phases == {"forward", "backward", "optimizer"}


LEAKY = """
import torch
from torch import nn


def build_model():
    return nn.Linear(512, 512)


def make_batch(batch_size):
    return torch.randn(batch_size, 512)


def training_step(model, batch):
    kept = vars(torch).setdefault("kept", [])  # a library's: the user's own objects are set back
    kept.append(model(batch))
    return kept[-1].mean()
"""


def test_a_worker_that_a_trial_left_dirty_is_replaced(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """A target that keeps its outputs where they are not found gets a fresh process and the same peak for each."""
    (tmp_path / "model.py").write_text(LEAKY)
    request = ProbeRequest(target="model.py", directory=tmp_path, target_batch=64)
    reference = parse_reference("model.py", directory=tmp_path)
    with WorkerTrialSource(request, reference, null_environment(2 * 1024**3)) as supervisor:
        supervisor.load()
        peaks = [
            supervisor.run(8, micro_steps=2, allowed_bytes=supervisor.capacity_bytes).peak_allocated_bytes
            for _ in range(3)
        ]

    assert supervisor.notes.replaced == 2
    assert len(set(peaks)) == 1
