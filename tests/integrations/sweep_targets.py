"""A model whose size a sweep varies, in batches that cost the host nothing."""

WIDTHS = """
import torch
from torch import nn


def build_model(width=256, depth=2):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Embedding(100, width), *layers, nn.Linear(width, 1))


def make_batch(batch_size):
    return torch.zeros(batch_size, 16384, dtype=torch.long)


def training_step(model, batch):
    return model(batch).square().mean()
"""

TARGET = "model.py:build_model(width={width})"
