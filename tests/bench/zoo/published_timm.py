"""Models of `timm` as its own benchmark of training runs them, in fp16 without a scaler; no weights are loaded.

`TIMM_FUSED_ATTN=0` has attention computed as it was in the version that was measured.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

torch.backends.cudnn.benchmark = True
_sizes: dict[str, Any] = {}


def build_model(architecture: str) -> nn.Module:
    """Build a model by its name in `timm`."""
    import timm

    model: nn.Module = timm.create_model(architecture)
    channels, side, _ = timm.data.resolve_data_config({}, model=model)["input_size"]
    _sizes.update(channels=channels, side=side, classes=model.num_classes)
    return model


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, channels, side, side), left uninitialised, and labels (batch)."""
    images = torch.empty(batch_size, _sizes["channels"], _sizes["side"], _sizes["side"])
    return images, torch.zeros(batch_size, dtype=torch.long)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of a forward under autocast."""
    images, labels = batch
    with torch.autocast("cuda", torch.float16):
        output = model(images)
    return nn.functional.cross_entropy(output[0] if isinstance(output, tuple) else output, labels)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD, a parameter after the other, that keeps its gradients and fills them with zeros."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, foreach=False)
    keeping = functools.partial(torch.optim.SGD.zero_grad, optimizer, set_to_none=False)
    optimizer.zero_grad = lambda set_to_none=True: keeping()  # type: ignore[method-assign]  # noqa: ARG005
    return optimizer
