"""Fill the card, free it, and compare PyTorch's account with the null GPU's; write a snapshot to the path given."""

# ruff: noqa: D103
from __future__ import annotations

import sys
from pathlib import Path

import torch
from reporting import leave_with
from torch import nn

from oomdoctor.engines.null_gpu.library import capacity_bytes, used_bytes


def accounts() -> tuple[int, int]:
    return torch.cuda.memory_reserved(), used_bytes()


torch.cuda.memory._record_memory_history()
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
for size in (64, 1024, 4096, 100, 8192):
    model(torch.randn(size, 1024, device="cuda")).sum().backward()
    model.zero_grad()
trained = accounts()
tensors = []
try:
    while True:
        tensors.append(torch.empty(300 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
full = accounts()
count = len(tensors)
tensors.clear()
torch.cuda.empty_cache()
freed = accounts()
torch.cuda.memory._dump_snapshot(sys.argv[1])
segments = torch.cuda.memory_snapshot()
leave_with(
    trained=trained,
    full=full,
    freed=freed,
    capacity=capacity_bytes(),
    tensors=count,
    expandable=any(segment["is_expandable"] for segment in segments),
    snapshot_bytes=Path(sys.argv[1]).stat().st_size,
    ooms=torch.cuda.memory_stats()["num_ooms"],
)
