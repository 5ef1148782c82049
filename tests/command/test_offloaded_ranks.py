"""Ranks that keep their part of a model in the host's memory, which is real beside a null GPU."""

from __future__ import annotations

import json
import sys
from math import isqrt
from pathlib import Path

import pytest
from command_running import answer, ask
from running import Run

from oomdoctor.agent.host_memory import free_host_bytes

pytestmark = pytest.mark.null_gpu

LAUNCHER = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "8")
QUESTION = ("--world-size", "8", "--rank", "0", "--target-batch", "16")
MODEL = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

WIDTH = {width}

def build_model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))

def make_batch(batch_size):
    return torch.ones(batch_size, WIDTH)

def training_step(model, batch):
    return model(batch).sum()

def parallelize(model, mesh):
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory={pin}))
"""
SCRIPT = """\
import os
import sys
import torch
import torch.distributed as dist
import model as file

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
with torch.device("meta"):
    model = file.build_model()
file.parallelize(model, dist.init_device_mesh("cuda", (dist.get_world_size(),)))
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    file.training_step(model, file.make_batch(int(sys.argv[1])).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def of_share(directory: Path, share: float, *, pin: bool) -> None:
    """Write a model of which one of eight ranks has weights of this share of the host's free memory, and its script."""
    free = free_host_bytes()
    assert free is not None
    (directory / "model.py").write_text(MODEL.format(width=isqrt(int(free * share / 4)), pin=pin))
    (directory / "train.py").write_text(SCRIPT)


def test_a_small_part_is_offloaded(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A rank whose offloaded part has room is probed: the optimizer keeps nothing on the GPU, in a file as in a script.

    The GPU holds one layer at a time, gathered, and its gradient.
    """
    (tmp_path / "model.py").write_text(MODEL.format(width=256, pin=True))
    (tmp_path / "train.py").write_text(SCRIPT)
    of_script = answer(tmp_path, *QUESTION, "--", *LAUNCHER, "train.py", "{micro_batch}")
    ended = oomdoctor_here("probe", "model.py", *QUESTION, "--gpu", "t4", "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    for found in (of_script, json.loads(ended.stdout)["result"]):
        (rank,) = found["ranks"]
        assert rank["maximum"] == 2
        at_end = [each["end_allocated_bytes"] for each in rank["phases"] if each["phase"] == "optimizer"]
        assert max(at_end) < 256 * 256 * 4 <= rank["peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("share", "pin", "told"),
    [(0.8, True, "`CPUOffloadPolicy` ("), (0.3, False, "GiB of states of AdamW)")],
    ids=["weights and gradients", "optimizer"],
)
def test_a_part_beyond_the_hosts_memory_is_refused(
    tmp_path: Path, oomdoctor_here: Run, share: float, pin: bool, told: str
) -> None:
    """What would not have room on the host is estimated before it is there: no answer, with numbers and what to do."""
    of_share(tmp_path, share, pin=pin)
    for ended in (
        ask(tmp_path, *QUESTION, "--", *LAUNCHER, "train.py", "{micro_batch}"),
        oomdoctor_here("probe", "model.py", *QUESTION, "--gpu", "h200", "--quiet"),
    ):
        assert ended.returncode == 3, ended.stderr
        assert "error: rank 0 of 8 would take at least " in ended.stderr
        assert "GiB are free" in ended.stderr
        assert told in ended.stderr
        assert "hint: ask on a host with that much, or about a world of " in ended.stderr
        assert "Traceback" not in ended.stderr
