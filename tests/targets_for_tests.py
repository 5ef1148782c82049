"""Small user files, as text: tests write them to disk and probe them."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MLP = """
import torch
from torch import nn


def build_model(width=1024):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def make_batch(batch_size):
    return torch.randn(batch_size, 1024)


def training_step(model, batch):
    return model(batch).square().mean()
"""


def write_target(directory: Path, text: str = MLP, name: str = "model.py", **replacements: str) -> str:
    """Write a target and return its name; each replacement swaps a whole function of `MLP` for another text."""
    text = dedent(text)
    for function, body in replacements.items():
        start = text.index(f"def {function}(")
        rest = text[start + 4 :]
        end = rest.find("\ndef ")
        text = text[:start] + dedent(body).strip() + "\n" + ("" if end < 0 else "\n" + rest[end:])
    (directory / name).write_text(text)
    return name


LEAKING_LOOP = """\
import torch

def train(model, loader, optimizer):
    total = 0
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss
    return total
"""
