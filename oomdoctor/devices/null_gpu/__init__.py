"""PyTorch's own CUDA build on a device that has memory and no processor."""

from __future__ import annotations

from oomdoctor.devices.null_gpu.environment import environment, with_total_bytes

__all__ = ["environment", "with_total_bytes"]
