"""A decoder of Llama's shape, of any size, whose ranks share it by FSDP2: what `ranks.py` probes."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TOKENS = 128256
LENGTH = 8192
SIZES = {"8b": (4096, 32, 14336, 32), "70b": (8192, 64, 28672, 80), "405b": (16384, 128, 53248, 126)}
"""Width, heads, width of the feed-forward layers, and layers; of keys and values there are eight heads."""
KEY_HEADS = 8


class Attention(nn.Module):
    """Causal attention with fewer heads of keys than of queries."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, KEY_HEADS * self.head, bias=False)
        self.value = nn.Linear(width, KEY_HEADS * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what each token takes from those before it."""
        batch, length, width = hidden.shape
        query, key, value = (
            layer(hidden).view(batch, length, -1, self.head).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One layer, recomputed in the backward pass."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width, heads), nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        return checkpoint(self.run, hidden, use_reentrant=False)  # type: ignore[no-any-return]

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        hidden = hidden + self.attention(self.norms[0](hidden))
        normed = self.norms[1](hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The model."""

    def __init__(self, width: int, heads: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def build_model(size: str = "8b", layers: int = 0) -> nn.Module:
    """Return a model of a size; `layers` overrides how many it has."""
    width, heads, hidden, usual = SIZES[size]
    return Decoder(width, heads, hidden, layers or usual)


def make_batch(batch_size: int) -> torch.Tensor:
    """Return sequences, each with one token to predict at its end."""
    return torch.randint(TOKENS, (batch_size, LENGTH + 1))


def training_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def parallelize(model: Decoder, mesh: DeviceMesh) -> None:
    """Shard each layer and the root, as torchtitan does."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
