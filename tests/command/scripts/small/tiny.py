"""A small model, its batches and its loss, for the scripts beside it."""

import torch
from torch import nn

WIDTH = 256
LENGTH = 512  # with it a sample needs some MiB in forward and backward


def build_model(layers=2, width=WIDTH):
    blocks = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)]
    return nn.Sequential(*blocks)


def make_batch(batch_size, device="cuda", width=WIDTH):
    return torch.randn(batch_size, LENGTH, width, device=device)


def loss_of(model, batch):
    return (model(batch) - batch).square().mean()
