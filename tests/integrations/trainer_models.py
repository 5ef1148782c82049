"""Four small models that a trainer sizes, each with the data of its training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

TARGETS = {"mlp": 16384, "encoder": 4096, "resnet": 4096, "gpt2": 1024}
"""Samples per optimizer step, by model: more than fit."""
SHAPES = {"mlp": (1024,), "encoder": (32, 128), "resnet": (3, 32, 32)}
"""Shapes of samples; GPT-2's are tokens."""


class Samples(Dataset[Any]):
    """Samples that are the same in every process."""

    def __init__(self, name: str, length: int = 4096) -> None:
        generator = torch.Generator().manual_seed(3)
        shape = SHAPES.get(name)
        self._length = length
        if shape is None:
            self._rows: Any = [
                {"input_ids": row, "labels": row} for row in torch.randint(512, (64, 64), generator=generator)
            ]
        else:
            self._rows = [(row, index % 10) for index, row in enumerate(torch.randn(64, *shape, generator=generator))]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % 64]


def build(name: str) -> nn.Module:
    """A model."""
    if name == "mlp":
        return nn.Sequential(
            nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
        )
    if name == "encoder":
        layers = [nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 128, 10))
    if name == "resnet":
        from torchvision.models.resnet import BasicBlock, ResNet

        return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=2))


def target(name: str, optimizer: str = "AdamW") -> str:
    """The source of the file that `oomdoctor probe` asks about, for the same model, batches and optimizer."""
    batch = "{'input_ids': torch.zeros(size, 64, dtype=torch.long), 'labels': torch.zeros(size, 64, dtype=torch.long)}"
    if name != "gpt2":
        batch = f"(torch.zeros(size, *{SHAPES[name]}), torch.zeros(size, dtype=torch.long))"
    step = "model(**batch).loss" if name == "gpt2" else "nn.functional.cross_entropy(model(batch[0]), batch[1])"
    return f"""
import torch
from torch import nn
from trainer_models import build

def build_model(): return build({name!r})
def make_batch(size): return {batch}
def training_step(model, batch): return {step}
def build_optimizer(model): return torch.optim.{optimizer}(model.parameters(), lr=1e-3)
"""
