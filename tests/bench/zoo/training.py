"""A decoder of 512 tokens, trained as people train: tied weights, checkpoints, own gradients, clipping, averages.

An expert chooses its tokens, a fixed number of them (Zhou et al., 2022): no shape depends on what was computed.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

TOKENS = 512
VOCABULARY = 24000
EXPERTS, CAPACITY = 8, 1.25


class Squared(torch.autograd.Function):
    """The square of a ReLU, which keeps its input alone and writes its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the square of what is positive."""
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return twice what is positive, times the gradient."""
        (x,) = ctx.saved_tensors
        return 2 * x.relu() * gradients[0]


class FeedForward(nn.Module):
    """Two layers around an activation."""

    def __init__(self, width: int, *, own_gradient: bool) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.own_gradient = own_gradient

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        hidden = self.widen(x)
        mapped: Tensor = self.narrow(Squared.apply(hidden) if self.own_gradient else nn.functional.gelu(hidden))
        return mapped


class Experts(nn.Module):
    """One of eight feed-forward layers for each token; an expert takes its most fitting tokens and no more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS)
        self.widen = nn.Parameter(torch.randn(EXPERTS, width, 2 * width) / math.sqrt(width))
        self.narrow = nn.Parameter(torch.randn(EXPERTS, 2 * width, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (batch, tokens, width)."""
        tokens = x.flatten(0, 1)
        taken = math.ceil(CAPACITY * len(tokens) / EXPERTS)
        weights, places = self.router(tokens).softmax(-1).t().topk(taken, dim=-1)
        hidden = torch.bmm(nn.functional.silu(torch.bmm(tokens[places], self.widen)), self.narrow)
        mixed = torch.zeros_like(tokens).index_add(
            0, places.flatten(), (hidden * weights[..., None]).flatten(0, 1).to(tokens.dtype)
        )
        return mixed.view_as(x)


class Block(nn.Module):
    """Causal attention over rotated keys, and a feed-forward layer."""

    def __init__(self, width: int, *, own_gradient: bool, experts: bool) -> None:
        super().__init__()
        self.heads = width // 64
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query_key_value, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed_forward = Experts(width) if experts else FeedForward(width, own_gradient=own_gradient)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Keep the shape (batch, tokens, width)."""
        parts = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, self.heads, 64)).transpose(1, 3).unbind(2)
        query, key = (turned(part, turns) for part in parts[:2])
        mixed = nn.functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.feed_forward(self.norms[1](x))
        return added


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Turn pairs of features by their position, as rotary embeddings do."""
    left, right = x.chunk(2, dim=-1)
    return x * turns.cos() + torch.cat([-right, left], dim=-1) * turns.sin()


class Decoder(nn.Module):
    """Some blocks between an embedding and an output layer with the same weights."""

    def __init__(self, width: int, layers: int, checkpoint: str | None, **block: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, **block) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight
        angles = torch.outer(torch.arange(TOKENS), 10_000 ** (-torch.arange(32) / 32))
        self.register_buffer("turns", torch.cat([angles, angles], dim=-1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self._through(block, x)
        logits: Tensor = self.output(self.norm(x))
        return logits

    def _through(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.checkpoint is None:
            through: Tensor = block(x, self.turns)
        else:
            through = recompute(block, x, self.turns, use_reentrant=self.checkpoint == "reentrant")
        return through


class Averaged(nn.Module):
    """A model and the moving average of its weights, which is not trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.average = model, copy.deepcopy(model).requires_grad_(requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map as the model does."""
        logits: Tensor = self.model(tokens)
        return logits


def build_model(  # noqa: PLR0913 - each is a way to train, and all are named
    *,
    width: int = 768,
    layers: int = 8,
    checkpoint: str | None = None,
    own_gradient: bool = False,
    experts: bool = False,
    average: bool = False,
    clip: bool = False,
) -> nn.Module:
    """Build the decoder.

    Args:
        width: Features of a token.
        layers: Blocks.
        checkpoint: `reentrant` or `non-reentrant` recomputes each block.
        own_gradient: The activation is a `torch.autograd.Function`.
        experts: The feed-forward layers are mixtures of experts.
        average: A moving average of the weights is kept.
        clip: The gradient's norm is clipped.
    """
    model: nn.Module = Decoder(width, layers, checkpoint, own_gradient=own_gradient, experts=experts)
    model = Averaged(model) if average else model
    model.clip = clip
    return model


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW in two groups, with what happens before and after its step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4)
    if model.clip:
        optimizer.register_step_pre_hook(lambda *_: clipped(trained))
    if isinstance(model, Averaged):
        optimizer.register_step_post_hook(partial(averaged, model))
    return optimizer


def clipped(trained: list[nn.Parameter]) -> None:
    """Clip the norm of all gradients together."""
    nn.utils.clip_grad_norm_(trained, 1.0)


@torch.no_grad()
def averaged(model: Averaged, *_: object) -> None:
    """Move the average a thousandth of the way to the weights."""
    torch._foreach_lerp_(list(model.average.parameters()), list(model.model.parameters()), 1e-3)


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Draw token ids and, for each of them, the one that follows: both (batch, tokens)."""
    text = torch.randint(VOCABULARY, (batch_size, TOKENS))
    return text, text.roll(-1, dims=1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next token."""
    tokens, targets = batch
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
