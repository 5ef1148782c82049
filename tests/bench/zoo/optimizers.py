"""Wide layers whose memory is weights, gradients and the optimizer's state: what each optimizer does shows whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TOKENS, WIDTH, LAYERS = 256, 3072, 8


class Wide(nn.Sequential):
    """Linear layers with GELU between them, and how they are to be trained."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()) for _ in range(LAYERS)))
        self.recipe = recipe


def build_model(**recipe: Any) -> nn.Module:
    """Build the layers; the recipe is `name`, an optimizer of `torch.optim`, and what it is called with."""
    return Wide(recipe)


def make_batch(batch_size: int) -> Tensor:
    """Return vectors (batch, width)."""
    return torch.randn(WIDTH).repeat(batch_size, 1)


def training_step(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean square of what comes out for each vector, which is there so many times."""
    return model(batch[:, None].repeat(1, TOKENS, 1)).float().square().mean()


def build_optimizer(model: Wide) -> torch.optim.Optimizer:
    """Return the optimizer of the recipe."""
    settings = dict(model.recipe)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, settings.pop("name"))(model.parameters(), **settings)
    return optimizer
