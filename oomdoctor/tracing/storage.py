"""Tensors' shapes in their storages: views, and storages that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.tracing.private import restride

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from oomdoctor.tracing.device import EmulatedDevice


def resize(device: EmulatedDevice, tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Give a tensor another shape, and a larger storage where it needs one."""
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    needed = 0 if 0 in size else (tensor.storage_offset() + last + 1) * tensor.element_size()
    if needed <= tensor.untyped_storage().nbytes():
        restride(tensor, size, stride)
    else:
        tensor.data = device.tensor(size, stride, tensor.dtype)
