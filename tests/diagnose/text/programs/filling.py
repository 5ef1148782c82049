"""Run out of memory in several ways; print each error's text with what PyTorch counted at that moment, as JSON."""

# ruff: noqa: D103
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch


def report(name: str, allocate: Callable[[], object]) -> None:
    try:
        allocate()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        text = str(error)
    free, total = torch.cuda.mem_get_info()
    print(
        json.dumps(
            {
                "name": name,
                "text": text,
                "free": free,
                "total": total,
                "allocated": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
            }
        )
    )


def take(size: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


kept = [take((1 << 29) + (37 << 20)), take(700 << 20), take(3 << 20)]
report("huge", lambda: take(40 << 30))
report("beyond counting", lambda: take(1 << 61))
torch.cuda.set_per_process_memory_fraction(0.25)
report("capped", lambda: take(8 << 30))
report("host", lambda: take(1 << 50, "cpu"))
sys.stdout.flush()
os._exit(0)
