"""A word-level language model: two LSTM layers of 650 units on 70 tokens, trained with Adam.

    oomdoctor probe lstm --target-batch 1024 --gpu rtx-4090
    oomdoctor probe lstm --target-batch 1024 --gpu rtx-4090 --precision bf16
    oomdoctor probe "lstm:build_model(width=1500, dropout=0.65)" --target-batch 1024 --gpu rtx-4090

It is the medium model of Zaremba, Sutskever and Vinyals (2014), 650 units with a dropout of one half, over the 33,278
words of WikiText-2; 70 tokens instead of their 35 are what Merity, Keskar and Socher (2017) made usual for that text.
Its memory is the logits, 70 x 33,278 values a sample; what the LSTM itself keeps is small beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 70
VOCABULARY = 33278


class LanguageModel(nn.Module):
    """Embedding, LSTM and output layer, with dropout before, between and after the LSTM's layers."""

    def __init__(self, *, layers: int, width: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


def build_model(*, layers: int = 2, width: int = 650, vocabulary: int = VOCABULARY, dropout: float = 0.5) -> nn.Module:
    """Build the language model; a width of 1500 and a dropout of 0.65 make it the large one."""
    return LanguageModel(layers=layers, width=width, vocabulary=vocabulary, dropout=dropout)


def make_batch(batch_size: int, *, tokens: int = TOKENS, vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    """Draw token ids and, for each of them, the one that follows: both (batch, tokens)."""
    text = torch.randint(vocabulary, (batch_size, tokens))
    return text, text.roll(-1, dims=1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next token."""
    tokens, targets = batch
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam: it needs no schedule as plain SGD did, for two more values a parameter."""
    return torch.optim.Adam(model.parameters(), lr=1e-3)
