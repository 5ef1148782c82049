"""Ranks of programs that other launchers and libraries start, unmodified, each alone."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from command_running import answer, ask

from oomdoctor.agent.host_memory import free_host_bytes

pytestmark = pytest.mark.null_gpu
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")

SCRIPTS = Path(sys.executable).parent
HSDP = """\
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
with torch.device("cuda"):
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.ones(int(sys.argv[1]), 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""
ACCELERATE = """\
import sys
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
data = DataLoader(TensorDataset(torch.ones(4096, 512)), batch_size=int(sys.argv[1]))
model, optimizer, data = accelerator.prepare(model, optimizer, data)
assert accelerator.num_processes == 16
for (batch,) in data:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
accelerator.wait_for_everyone()
"""
DEEPSPEED = """\
import sys
import deepspeed
import torch
from torch import nn

stage, offload = int(sys.argv[2]), sys.argv[3] == "offload"
zero = {"stage": stage}
if offload:
    zero["offload_optimizer"] = {"device": "cpu"}
deepspeed.init_distributed("nccl")
settings = {
    "train_micro_batch_size_per_gpu": int(sys.argv[1]),
    "bf16": {"enabled": True},
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": False,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}
width = int(sys.argv[4])
with deepspeed.zero.Init(config_dict_or_path=settings, enabled=stage == 3):
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for step in range(3):
    batch = torch.ones(int(sys.argv[1]), width, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(batch).sum())
    engine.step()
"""
RUNNER = (sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "8", "--no_local_rank")
WEIGHTS = 8 * 2048 * 2048
"""Elements of what DeepSpeed trains here."""


def at_ends(found: dict[str, Any]) -> list[int]:
    """Bytes that are held after the last optimizer step, by rank."""
    return [[each["end_allocated_bytes"] for each in rank["phases"]][-1] for rank in found["ranks"]]


def test_sixteen_ranks_of_replicated_shards(tmp_path: Path) -> None:
    """HSDP of 2 x 8: each rank keeps an eighth of weights and states, and has communicators of 16, 8 and 2 ranks."""
    (tmp_path / "train.py").write_text(HSDP)
    words = (str(SCRIPTS / "torchrun"), "--nproc-per-node", "8", "train.py", "{micro_batch}")
    found = answer(tmp_path, "--world-size", "16", "--target-batch", "64", "--", *words)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 15]
    assert {8, 2} <= set(found["nccl"]["communicators"])
    share = 4 * 1024 * 1024 * 4 // 8
    for rank in found["ranks"]:
        ends = [each["end_allocated_bytes"] for each in rank["phases"] if each["phase"] == "optimizer"]
        assert 3 * share <= ends[-1] < 5 * share


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch_starts_ranks(tmp_path: Path) -> None:
    """A script of accelerate's trains as two of sixteen ranks that `accelerate launch` would start on two machines."""
    (tmp_path / "train.py").write_text(ACCELERATE)
    words = (str(SCRIPTS / "accelerate"), "launch", "--multi_gpu", "--num_processes", "8", "train.py", "{micro_batch}")
    found = answer(tmp_path, "--world-size", "16", "--target-batch", "128", "--", *words)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 15]
    assert found["micro_batch"]["maximum"] == 8
    assert found["command_plan"]["run"][:2] == list(words[:2])
    assert 16 in found["nccl"]["communicators"]


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_divides_more_with_each_stage(tmp_path: Path, stage: int) -> None:
    """ZeRO 1, 2 and 3 of 8 ranks: states are an eighth, and the weights too at the third stage."""
    (tmp_path / "train.py").write_text(DEEPSPEED)
    words = (*RUNNER, "train.py", "{micro_batch}", str(stage), "none", "2048")
    question = ("--world-size", "8", "--rank", "0", "--target-batch", "64", "--capacity", "3GiB")
    found = answer(tmp_path, *question, "--", *words)
    (rank,) = found["ranks"]
    assert rank["maximum"] == 8
    (held,) = at_ends(found)
    least = 12 * WEIGHTS // 8 + 2 * WEIGHTS // (8 if stage == 3 else 1)
    assert least <= held


@needs_deepspeed
def test_deepspeed_offloading_beyond_the_host_is_refused(tmp_path: Path) -> None:
    """What `offload_optimizer` would put on the host, 16 bytes a parameter, is estimated before it is there."""
    (tmp_path / "train.py").write_text(DEEPSPEED)
    free = free_host_bytes()
    assert free is not None
    words = (*RUNNER, "train.py", "{micro_batch}", "3", "offload", str(isqrt(free * 3 // 2 // 16)))
    question = ("--world-size", "8", "--rank", "0", "--target-batch", "64", "--gpu", "h200")
    ended = ask(tmp_path, *question, "--", *words)
    assert ended.returncode == 3, ended.stderr
    assert "more of this host's memory" in ended.stderr
    assert "`offload_optimizer` of DeepSpeed (" in ended.stderr
