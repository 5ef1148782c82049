"""Tell the memory of a compiled step whose matrix multiplications Inductor times with padded operands, and without."""

from __future__ import annotations

import os

import torch
from reporting import leave_with
from torch import nn
from torch._dynamo.utils import counters

from oomdoctor.agent import null_gpu

null_gpu.begin()
width = int(os.environ["WIDTH"])  # odd, so that padding is considered, and new, so that no earlier run compiled it
step = torch.compile(nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, width)).cuda())
for _ in range(2):
    step(torch.randn(4096, 256, device="cuda")).square().mean().backward()
    step.zero_grad()
memory = torch.cuda.memory_stats()
leave_with(
    timed=sum(times for name, times in counters["inductor"].items() if name.endswith("benchmark_gpu")),
    memory={name: memory[f"{name}.all.{what}"] for name, what in (
        ("allocation", "allocated"), ("segment", "allocated"), ("allocated_bytes", "peak"), ("reserved_bytes", "peak"),
    )},
)  # fmt: skip
