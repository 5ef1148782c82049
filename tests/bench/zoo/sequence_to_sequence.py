"""Encoder-decoders of `transformers`, 512 tokens in and 128 out; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS, ANSWER = 512, 128
VOCABULARY = 32000
SIX: dict[str, object] = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 768}
T5: dict[str, object] = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 8, "num_heads": 12}
SETTINGS: dict[str, dict[str, object]] = {
    "bart": SIX | {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "max_position_embeddings": TOKENS},
    "led": SIX | {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "attention_window": 128},
    "m2m_100": SIX | {"max_position_embeddings": TOKENS},
    "marian": SIX | {"max_position_embeddings": TOKENS, "pad_token_id": 1, "decoder_start_token_id": 1},
    "mt5": T5 | {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
    "pegasus": SIX | {"max_position_embeddings": TOKENS},
    "t5": T5 | {"decoder_start_token_id": 0},
}


def build_model(
    architecture: str, *, attention: str | None = None, checkpoint: bool = False, padded: bool = False
) -> nn.Module:
    """Build an encoder-decoder by its `model_type`.

    Args:
        architecture: A key of `SETTINGS`.
        attention: `eager` or `sdpa`; None for the one that `transformers` takes.
        checkpoint: Each layer is recomputed.
        padded: What is read and what is written end in padding, which attention is told of.
    """
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    config = AutoConfig.for_model(architecture, vocab_size=VOCABULARY, **SETTINGS[architecture])
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.padded = padded
    return model


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Draw what is read, (batch, tokens), and what is to be written, (batch, answer)."""
    return {
        "input_ids": torch.randint(5, VOCABULARY, (batch_size, TOKENS)),
        "labels": torch.randint(5, VOCABULARY, (batch_size, ANSWER)),
    }


def training_step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the model's own loss."""
    masks = {}
    if model.padded:
        masks = {"attention_mask": mask(batch["input_ids"]), "decoder_attention_mask": mask(batch["labels"])}
    loss: Tensor = model(**batch, **masks).loss
    return loss


def mask(tokens: Tensor) -> Tensor:
    """Return ones for tokens and a zero for the last of each sample: (batch, tokens)."""
    length = tokens.size(1)
    return (torch.arange(length, device=tokens.device) < length - 1).expand_as(tokens).long()
