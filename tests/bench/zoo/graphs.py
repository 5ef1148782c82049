"""Message passing over graphs of 4,096 nodes and 32,768 edges, in gathers and scatters of torch's own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

NODES, EDGES = 4096, 32_768
FEATURES, CLASSES = 128, 40


class Graphs(NamedTuple):
    """So many graphs as one: features (nodes, features), ends of the edges (2, edges), labels (nodes)."""

    features: Tensor
    edges: Tensor
    labels: Tensor


class Messages(nn.Module):
    """Each node adds the mean and takes the largest of what a layer makes of both ends of its edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(3 * width, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        """Keep the shape (nodes, width)."""
        message = self.message(torch.cat([x[sources], x[targets]], dim=-1))
        empty = torch.zeros(len(x), message.size(1), dtype=message.dtype, device=x.device)
        total = empty.index_add(0, targets, message)
        largest = empty.scatter_reduce(0, targets[:, None].expand_as(message), message, "amax")
        updated: Tensor = x + self.update(torch.cat([x, total, largest], dim=-1))
        return updated


class Attention(nn.Module):
    """Each node weighs its neighbours by a softmax over its edges, as graph attention does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.values, self.scores = nn.Linear(width, width), nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        """Keep the shape (nodes, width)."""
        values = self.values(x)
        pairs = torch.cat([values.index_select(0, sources), values.index_select(0, targets)], dim=-1)
        weights = nn.functional.leaky_relu(self.scores(pairs), 0.2).exp()
        sums = torch.zeros(len(x), 1, dtype=weights.dtype, device=x.device).index_add(0, targets, weights)
        messages = weights / sums[targets] * values[sources]
        mixed = torch.zeros(len(x), messages.size(1), dtype=messages.dtype, device=x.device)
        return x + nn.functional.elu(mixed.scatter_add(0, targets[:, None].expand_as(messages), messages))


class Network(nn.Module):
    """Some layers of one kind between two linear ones."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, width), nn.Linear(width, CLASSES)
        self.layers = nn.ModuleList(layers)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Map features (nodes, features) to logits (nodes, classes)."""
        x = self.enter(features)
        for layer in self.layers:
            x = layer(x, *edges)
        logits: Tensor = self.leave(x)
        return logits


def build_messages(*, width: int = 256, layers: int = 4) -> nn.Module:
    """Build a net that passes messages."""
    return Network([Messages(width) for _ in range(layers)], width)


def build_attention(*, width: int = 256, layers: int = 4) -> nn.Module:
    """Build a net that attends to neighbours."""
    return Network([Attention(width) for _ in range(layers)], width)


def make_batch(batch_size: int) -> Graphs:
    """Return so many graphs; the edges of each stay in it."""
    first = torch.arange(batch_size).repeat_interleave(EDGES) * NODES
    edges = torch.randint(NODES, (2, EDGES)).repeat(1, batch_size) + first
    labels = torch.randint(CLASSES, (NODES,)).repeat(batch_size)
    return Graphs(torch.randn(NODES, FEATURES).repeat(batch_size, 1), edges, labels)


def training_step(model: nn.Module, batch: Graphs) -> Tensor:
    """Return the mean cross entropy over all nodes."""
    return nn.functional.cross_entropy(model(batch.features, batch.edges), batch.labels)
