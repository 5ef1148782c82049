"""Encoders of `transformers` that hear five seconds at 16 kHz and name one of 35 words; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SAMPLES = 80_000
CLASSES = 35


def build_model(architecture: str, *, attention: str | None = None, checkpoint: bool = False) -> nn.Module:
    """Build `wav2vec2`, `hubert` or `wavlm`, without layer drop: which layers it skips is drawn anew every step."""
    from transformers import AutoConfig, AutoModelForAudioClassification

    config = AutoConfig.for_model(architecture, num_labels=CLASSES, layerdrop=0.0, apply_spec_augment=False)
    model = AutoModelForAudioClassification.from_config(config, attn_implementation=attention)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Return sound (batch, samples) and its labels (batch)."""
    return {
        "input_values": torch.randn(1, SAMPLES).repeat(batch_size, 1),
        "labels": torch.randint(CLASSES, (batch_size,)),
    }
