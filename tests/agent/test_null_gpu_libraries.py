"""Libraries that check their numbers do not refuse the zeros that a null GPU answers with."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from running import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

POLICY = """
import torch
from torch.distributions import Categorical, Normal


def build_model():
    return torch.nn.Linear(8, 4)


def make_batch(batch_size):
    return torch.randn(batch_size, 8)


def training_step(policy, observations):
    logits = policy(observations)
    actions = Categorical(logits=logits).sample()
    spread = Normal(logits, logits.exp(), validate_args=True)
    return Categorical(logits=logits).log_prob(actions).mean() + spread.log_prob(spread.rsample()).mean()
"""
RECURRENT = """
import torch


def build_model():
    return torch.nn.LSTM(8, 8)


def make_batch(batch_size):
    return torch.randn(4, batch_size, 8)


def training_step(model, batch):
    return model(batch)[0].mean()
"""
LOOP = """
import torch, policy
model = policy.build_model().cuda()
policy.training_step(model, policy.make_batch(4).cuda()).backward()
try:
    torch.distributions.Normal(torch.zeros(2), -torch.ones(2))
except ValueError:
    print("a negative scale on the CPU is refused")
"""


def test_distributions_of_a_file_are_not_refused(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`torch.distributions` takes what a step computed, whose check would read False from a null GPU."""
    (tmp_path / "policy.py").write_text(POLICY, encoding="utf-8")
    done = oomdoctor_here("probe", "policy.py", "--target-batch", "8", "--gpu", "t4", "--dry-run")
    assert (done.returncode, "micro-batch 1: fits" in done.stdout) == (0, True), done.stderr


def test_recurrent_layers_run_on_a_card_older_than_cudnn(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A recurrent layer is answered for on a card that torch's cuDNN is too new for, and the answer says so."""
    (tmp_path / "model.py").write_text(RECURRENT, encoding="utf-8")
    done = oomdoctor_here("probe", "model.py", "--target-batch", "2", "--gpu", "titan-v")
    assert (done.returncode, "micro-batch 2 fits" in done.stdout) == (0, True), done.stderr
    assert "was not built for compute capability 7.0" in " ".join(done.stdout.split())


def test_distributions_of_a_command_are_not_refused(tmp_path: Path) -> None:
    """A command's are not refused either, and what the CPU computed is checked as ever."""
    (tmp_path / "policy.py").write_text(POLICY, encoding="utf-8")
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    done = run_command(["run", "--gpu", "t4", "--", sys.executable, "loop.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "a negative scale on the CPU is refused\n"), done.stderr


SECOND_ORDER = """
import torch


class Preconditioned(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad.ndim == 2:
                u = torch.linalg.svd(p.grad, full_matrices=False).U
                values, vectors = torch.linalg.eigh(p.grad @ p.grad.T)
                self.state[p]["u"] = u[:, :4].clone()
                p.sub_(vectors * values.clamp_min(1e-6).pow(-0.25) @ vectors.T @ p.grad)


def build_model():
    return torch.nn.Linear(400, 3000)


def build_optimizer(model):
    return Preconditioned(model.parameters())


def make_batch(batch_size):
    return torch.randn(batch_size, 400)


def training_step(model, batch):
    return torch.stft(model(batch), 1024, return_complex=True).abs().mean()
"""
GRAPHED = """
import sys, torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batch = torch.randn(int(sys.argv[1]), 256, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=True)
    model(batch).mean().backward()
    optimizer.step()

with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(4):
        step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(9):
    graph.replay()
"""


def test_work_areas_that_are_not_known_are_told(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A model with an STFT and an optimizer with SVD and eigenvalues get an answer, which says what it assumes."""
    (tmp_path / "model.py").write_text(SECOND_ORDER, encoding="utf-8")
    done = oomdoctor_here("probe", "model.py", "--target-batch", "8", "--gpu", "t4", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    warnings = " ".join(json.loads(done.stdout)["result"]["warnings"])
    assert "Fourier transforms" in warnings
    assert "cuSOLVER" in warnings
    assert "read data back" not in warnings


def test_a_loop_of_cuda_graphs_is_answered_for(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A trial of a command goes on until the step that it warms up for is captured, and says what is not known."""
    (tmp_path / "loop.py").write_text(GRAPHED, encoding="utf-8")
    command = ("--trial-timeout", "100", "--", sys.executable, "loop.py", "{micro_batch}")
    null = ("--engine", "null", "--capacity", "1GiB", "--json", "--quiet")
    done = oomdoctor_here("probe", "--target-batch", "2", *null, *command)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["micro_batch"]["maximum"] == 2
    assert "CUDA graph" in " ".join(result["warnings"])


READS_BESIDE_A_LARGE_TENSOR = """
import gc, torch
gc.disable()

def step():
    large = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    if torch.rand(8, device="cuda").sum() > 4:
        large.zero_()

step()
print(torch.cuda.memory_allocated())
"""


def test_a_read_keeps_no_tensor_alive(tmp_path: Path) -> None:
    """A function that reads an unknown value lets go of its tensors when it returns, as it does on a GPU."""
    (tmp_path / "reads.py").write_text(READS_BESIDE_A_LARGE_TENSOR, encoding="utf-8")
    done = run_command(["run", "--gpu", "t4", "--", sys.executable, "reads.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
