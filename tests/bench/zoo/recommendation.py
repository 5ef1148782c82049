"""A recommender of clicks: 26 bags of ids and 13 numbers a sample, every pair of which is multiplied, as DLRM does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SAMPLES = 1024
"""Impressions in one sample of the batch: one user's session."""
TABLES, ROWS, PER_BAG, NUMBERS = 26, 50_000, 8, 13


class Recommender(nn.Module):
    """Bags of embeddings and a net over the numbers meet in their products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        self.numbers = nn.Sequential(nn.Linear(NUMBERS, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )
        # Not `torch.triu_indices` on the device: what it returns is a choice of places, made once.
        places = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)
        self.register_buffer("places", places[0] * (TABLES + 1) + places[1], persistent=False)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Map numbers (impressions, 13) and ids (26, impressions, in a bag) to logits (impressions)."""
        dense = self.numbers(numbers)
        vectors = torch.stack([dense, *(bag(rows) for bag, rows in zip(self.bags, ids, strict=True))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.places)
        logits: Tensor = self.top(torch.cat([dense, products], dim=1))
        return logits[:, 0]


def build_model(*, width: int = 64) -> nn.Module:
    """Build the recommender."""
    return Recommender(width)


def make_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers, ids and clicks of `batch_size` sessions."""
    impressions = batch_size * SAMPLES
    ids = torch.randint(ROWS, (TABLES, SAMPLES, PER_BAG)).repeat(1, batch_size, 1)
    return torch.randn(SAMPLES, NUMBERS).repeat(batch_size, 1), ids, torch.randint(2, (impressions,)).float()


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the clicks."""
    numbers, ids, clicks = batch
    return nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), clicks)
