"""Image classifiers of `timm`, where it is installed, on 3 x 224 x 224 in 1,000 classes; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 224
CLASSES = 1000


def build_model(architecture: str, *, checkpoint: bool = False, channels_last: bool = False) -> nn.Module:
    """Build a classifier by its name in `timm`; `checkpoint` recomputes, `channels_last` is the weights' layout."""
    import timm

    model: nn.Module = timm.create_model(architecture, num_classes=CLASSES)
    if checkpoint:
        model.set_grad_checkpointing()
    return model.to(memory_format=torch.channels_last) if channels_last else model


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, side, side) and their labels (batch)."""
    return torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1), torch.randint(CLASSES, (batch_size,))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)
