"""Compare the peak of a compiled step with that of the eager one."""

# ruff: noqa: D103
from __future__ import annotations

import sys

import torch
from reporting import leave_with
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()


def peak(step: nn.Module) -> int:
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step(torch.randn(512, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


eager = peak(model)
compiled = peak(torch.compile(model))
leave_with(eager=eager, compiled=compiled, triton="triton.runtime" in sys.modules)
