"""The GPT-2 124M of the scripts beside this file, as a target."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def build_model() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config())


def make_batch(batch_size: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(50257, (batch_size, 1024))
    return {"input_ids": tokens, "labels": tokens.clone()}


def training_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss
