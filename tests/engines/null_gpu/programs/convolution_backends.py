"""Which library PyTorch chooses for a convolution in each precision; a slow fallback would hold gigabytes."""

from __future__ import annotations

import torch
from reporting import leave_with

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def backend(dtype: torch.dtype) -> str:
    """Name of the backend, after a forward and backward through it."""
    images = torch.empty(2, 64, 32, 32, device="cuda", dtype=dtype, requires_grad=True)
    weight = torch.empty(64, 64, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
    torch.nn.functional.conv2d(images, weight, padding=1).sum().backward()
    ones, transposed = [1, 1], False
    chosen = torch._C._select_conv_backend(images, weight, None, ones, ones, ones, transposed, [0, 0], 1)
    return str(chosen).rpartition(".")[2]


leave_with(backends={name: backend(dtype) for name, dtype in TYPES.items()})
