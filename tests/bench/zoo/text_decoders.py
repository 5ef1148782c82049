"""Causal decoders of `transformers` on 1,024 tokens; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 1024
VOCABULARY = 32000
BASE: dict[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": TOKENS,
}
GROUPED = BASE | {"num_key_value_heads": 4}
EXPERTS = GROUPED | {"num_hidden_layers": 6, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01}
SETTINGS: dict[str, dict[str, object]] = {
    "bloom": {"hidden_size": 768, "n_layer": 12, "n_head": 12},
    "codegen": {"n_embd": 768, "n_layer": 12, "n_head": 12, "rotary_dim": 32, "n_positions": TOKENS},
    "falcon": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "new_decoder_architecture": False,
    },
    "gemma": GROUPED | {"head_dim": 64},
    "gemma2": GROUPED | {"head_dim": 64, "sliding_window": 512},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt_neo": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
    "gpt_neox": BASE | {"intermediate_size": 3072},
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 512},
    "mixtral": EXPERTS | {"num_local_experts": 8},
    "olmo2": GROUPED,
    "opt": {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    "phi": BASE | {"intermediate_size": 3072},
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 64},
    "qwen3_moe": EXPERTS | {"head_dim": 64, "num_experts": 16, "moe_intermediate_size": 768},
    "stablelm": GROUPED,
}


def build_model(
    architecture: str,
    *,
    attention: str | None = None,
    checkpoint: str | None = None,
    dtype: str = "float32",
    padded: bool = False,
) -> nn.Module:
    """Build a decoder by its `model_type`.

    Args:
        architecture: A key of `SETTINGS`.
        attention: `eager` or `sdpa`; None for the one that `transformers` takes.
        checkpoint: `reentrant` or `non-reentrant` recomputes each layer.
        dtype: Type of the weights.
        padded: Every sample ends in padding, which attention is told of.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(architecture, vocab_size=VOCABULARY, **SETTINGS[architecture])
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if checkpoint is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpoint == "reentrant"})
    model.padded = padded
    return model.to(getattr(torch, dtype))


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Draw token ids, which are the labels as well: (batch, tokens)."""
    tokens = torch.randint(5, VOCABULARY, (batch_size, TOKENS))
    return {"input_ids": tokens, "labels": tokens}


def training_step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the model's own loss."""
    tokens = batch["input_ids"]
    mask = (torch.arange(TOKENS, device=tokens.device) < TOKENS - 1).expand_as(tokens).long() if model.padded else None
    loss: Tensor = model(**batch, attention_mask=mask).loss
    return loss
