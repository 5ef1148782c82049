"""Torch's own layers for sequences, on 256 tokens that name the next: transformers, LSTM and GRU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 256
VOCABULARY = 16000


class Language(nn.Module):
    """Embedding, a body that maps (batch, tokens, width) to some width, and an output layer."""

    def __init__(self, body: nn.Module, width: int, out_width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(TOKENS, width))
        self.body = body
        self.output = nn.Linear(out_width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        logits: Tensor = self.output(self.body(self.embedding(tokens) + self.positions))
        return logits


class Recurrent(nn.Module):
    """An LSTM or a GRU without its state."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to (batch, tokens, directions * width)."""
        hidden: Tensor = self.layer(x)[0]
        return hidden


class Causal(nn.Module):
    """`nn.TransformerEncoder` that sees no later token."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (batch, tokens, width)."""
        hidden: Tensor = self.layers(x, mask=self.mask, is_causal=True)
        return hidden


class Translating(nn.Module):
    """`nn.Transformer` that reads the sequence and writes it again."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.Transformer(width, width // 64, layers, layers, 4 * width, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape (batch, tokens, width)."""
        hidden: Tensor = self.layers(x, x, tgt_mask=self.mask, tgt_is_causal=True)
        return hidden


def build_encoder(*, width: int = 768, layers: int = 8) -> nn.Module:
    """Build a causal `nn.TransformerEncoder`."""
    return Language(Causal(width, layers), width, width)


def build_encoder_decoder(*, width: int = 512, layers: int = 6) -> nn.Module:
    """Build an `nn.Transformer`."""
    return Language(Translating(width, layers), width, width)


def build_lstm(*, width: int = 1024, layers: int = 3, projected: int = 0) -> nn.Module:
    """Build an LSTM of both directions with dropout, or one whose output is projected."""
    lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2, bidirectional=True, proj_size=projected)
    return Language(Recurrent(lstm), width, 2 * (projected or width))


def build_gru(*, width: int = 1024, layers: int = 4) -> nn.Module:
    """Build a GRU with dropout."""
    return Language(Recurrent(nn.GRU(width, width, layers, batch_first=True, dropout=0.2)), width, width)


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Draw token ids and, for each of them, the one that follows: both (batch, tokens)."""
    text = torch.randint(VOCABULARY, (batch_size, TOKENS))
    return text, text.roll(-1, dims=1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next token."""
    tokens, targets = batch
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
