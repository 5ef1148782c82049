"""How tensors lie in memory, as C++ asks for it."""

from __future__ import annotations

import torch


def suggested_layout(x: torch.Tensor) -> torch.memory_format:
    """Channels last, where `x` lies so and in no other way. Source: `suggest_memory_format`, TensorBase.h."""
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == rank and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format
