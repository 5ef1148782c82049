"""A small repository as a team has it: a distilled encoder in `train/model.py`, and what it has to keep fitting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MODEL: Final = '''
"""An encoder that learns from a larger teacher."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from train.layers import Layer

TOKENS = 128
WIDTH = 128


class Encoder(nn.Module):
    def __init__(self, depth, hidden):
        super().__init__()
        self.layers = nn.ModuleList(Layer(WIDTH, hidden) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class Teacher(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Layer(WIDTH, 8 * WIDTH) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Distilled(nn.Module):
    def __init__(self, depth, hidden):
        super().__init__()
        self.embedding = nn.Linear(32, WIDTH)
        self.encoder = Encoder(depth, hidden)
        self.teacher = Teacher(depth)

    def forward(self, features):
        x = self.embedding(features)
        with torch.no_grad():  # it is not trained
            wanted = self.teacher(x)
        return (self.encoder(x) - wanted).square().mean()


def build_model(depth=6, hidden=4 * WIDTH):
    return Distilled(depth, hidden)


def make_batch(batch_size):
    return torch.randn(batch_size, TOKENS, 32)


def build_optimizer(model):
    trained = [*model.embedding.parameters(), *model.encoder.parameters()]
    return torch.optim.AdamW(trained, lr=1e-4, foreach=False)
'''

LAYERS: Final = '''
"""Layers of transformers."""

from torch import nn


class Layer(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        query, key, value = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        scores = (query @ key.transpose(-2, -1)).softmax(dim=-1)
        x = x + self.mixed(scores @ value)
        return x + self.feed_forward(self.norm(x))
'''

CONFIGURATION: Final = """
[[tool.oomdoctor.check]]
name = "distil"
target = "train/model.py:build_model(depth=6)"
gpu = "rtx-4090"
capacity = "100MiB"
target-batch = 256
micro-batch = 8
baseline = true
"""


def make_repository(folder: Path) -> None:
    """Write the repository's files into an empty folder."""
    (folder / "train").mkdir()
    (folder / "train" / "__init__.py").touch()
    (folder / "train" / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "train" / "layers.py").write_text(LAYERS, encoding="utf-8")
    (folder / "pyproject.toml").write_text(CONFIGURATION, encoding="utf-8")


def change(folder: Path, name: str, old: str, new: str) -> None:
    """Change the one place of a file that has `old`."""
    path = folder / "train" / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
    path.write_text(text.replace(old, new), encoding="utf-8")
