"""GPT-2 124M on its full context of 1024 tokens, trained with AdamW.

    oomdoctor probe gpt2 --target-batch 256 --gpu rtx-4090
    oomdoctor probe gpt2 --target-batch 256 --gpu rtx-4090 --precision bf16
    oomdoctor probe "gpt2:build_model(layers=24, width=1024, heads=16)" --target-batch 256 --gpu a100-sxm4-80gb
    oomdoctor probe "gpt2:build_model(checkpoint=True)" --target-batch 256 --gpu rtx-4090

Its largest tensor is the logits: 1024 x 50,257 values a sample, several times over in the loss and its backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

CONTEXT = 1024
VOCABULARY = 50257


class Attention(nn.Module):
    """Causal self-attention; the scores are never held in memory as a whole."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        y: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """Attention, then a feed-forward layer, each normalised first and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x  # noqa: RET504


class GPT2(nn.Module):
    """A decoder whose token embedding is also its output layer."""

    def __init__(  # noqa: PLR0913
        self, *, layers: int, width: int, heads: int, context: int, vocabulary: int, dropout: float, checkpoint: bool
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        # As small as GPT-2 draws them; for linear layers PyTorch's own first values are as small already.
        self.tokens = nn.Parameter(torch.normal(0.0, 0.02, (vocabulary, width)))
        self.positions = nn.Parameter(torch.normal(0.0, 0.02, (context, width)))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        if tokens.size(1) != len(self.positions):
            raise ValueError(f"{tokens.size(1)} tokens in the batch, {len(self.positions)} in the model's context")
        x = self.dropout(nn.functional.embedding(tokens, self.tokens) + self.positions)
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return nn.functional.linear(self.norm(x), self.tokens)


def build_model(  # noqa: PLR0913
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    context: int = CONTEXT,
    vocabulary: int = VOCABULARY,
    dropout: float = 0.0,
    checkpoint: bool = False,
) -> nn.Module:
    """Build a GPT-2; `checkpoint` keeps only each block's input for backward and computes the rest again."""
    return GPT2(
        layers=layers,
        width=width,
        heads=heads,
        context=context,
        vocabulary=vocabulary,
        dropout=dropout,
        checkpoint=checkpoint,
    )


def make_batch(batch_size: int, *, context: int = CONTEXT, vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    """Draw token ids and, for each of them, the one that follows: both (batch, tokens)."""
    tokens = torch.randint(vocabulary, (batch_size, context))
    return tokens, tokens.roll(-1, dims=1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next token."""
    tokens, targets = batch
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
