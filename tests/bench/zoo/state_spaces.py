"""State-space and recurrent decoders of `transformers` on 128 tokens, in plain PyTorch: a loop over the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 128
VOCABULARY = 32000
SETTINGS: dict[str, dict[str, object]] = {
    "mamba": {"hidden_size": 768, "num_hidden_layers": 4},
    "mamba2": {"hidden_size": 768, "num_hidden_layers": 6, "num_heads": 24, "head_dim": 64, "chunk_size": 64},
    "rwkv": {"hidden_size": 768, "num_hidden_layers": 4, "context_length": TOKENS},
}


def build_model(architecture: str) -> nn.Module:
    """Build a decoder by its `model_type`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(architecture, vocab_size=VOCABULARY, **SETTINGS[architecture])
    return AutoModelForCausalLM.from_config(config)


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Draw token ids, which are the labels as well: (batch, tokens)."""
    tokens = torch.randint(5, VOCABULARY, (batch_size, TOKENS))
    return {"input_ids": tokens, "labels": tokens}
