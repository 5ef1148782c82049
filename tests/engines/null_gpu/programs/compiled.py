"""Compare the peak of a compiled step with that of the eager one, and with CUDA graphs."""

# ruff: noqa: D103
from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from reporting import leave_with
from torch import nn

from oomdoctor.agent.null_gpu import assumptions

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()


def peak(step: nn.Module, steps: int = 2) -> int:
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        step(torch.randn(512, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


eager = peak(model)
compiled = peak(torch.compile(model))
torch.compiler.reset()
graphed = peak(torch.compile(model, mode="reduce-overhead"), 3)  # one to warm up, one to record, one to replay
in_pools = sum(one["total_size"] for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] != (0, 0))
leave_with(
    eager=eager, compiled=compiled, graphed=graphed, in_pools=in_pools,
    assumptions=assumptions(), triton="triton.runtime" in sys.modules,
    binaries=[str(path) for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")],
)  # fmt: skip
