"""Encoders of `transformers` with their masked-language heads, on 512 tokens; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS = 512
VOCABULARY = 30000
BASE: dict[str, object] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
SETTINGS: dict[str, dict[str, object]] = {
    "albert": BASE | {"embedding_size": 128, "intermediate_size": 3072},
    "bert": BASE | {"intermediate_size": 3072},
    "convbert": BASE | {"num_hidden_layers": 6},
    "deberta-v2": BASE
    | {
        "num_hidden_layers": 6,
        "relative_attention": True,
        "position_buckets": 256,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "distilbert": {"dim": 768, "n_layers": 6, "n_heads": 12},
    "electra": {"embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4},
    "mobilebert": {},
    "modernbert": BASE
    | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 1},
    "mpnet": BASE,
    "nystromformer": BASE | {"num_hidden_layers": 6, "max_position_embeddings": TOKENS + 2},
    "rembert": BASE | {"num_hidden_layers": 6, "input_embedding_size": 256, "output_embedding_size": 768},
    "roberta": BASE | {"max_position_embeddings": TOKENS + 2},
    "roformer": BASE | {"embedding_size": 768, "num_hidden_layers": 6},
    "squeezebert": BASE | {"embedding_size": 768},
}


def build_model(
    architecture: str, *, attention: str | None = None, checkpoint: bool = False, padded: bool = False
) -> nn.Module:
    """Build an encoder by its `model_type`.

    Args:
        architecture: A key of `SETTINGS`.
        attention: `eager` or `sdpa`; None for the one that `transformers` takes.
        checkpoint: Each layer is recomputed.
        padded: Every sample ends in padding, which attention is told of.
    """
    from transformers import AutoConfig, AutoModelForMaskedLM

    config = AutoConfig.for_model(architecture, vocab_size=VOCABULARY, **SETTINGS[architecture])
    model = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.padded = padded
    return model


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Draw token ids and the words that were masked, both (batch, tokens)."""
    tokens = torch.randint(5, VOCABULARY, (batch_size, TOKENS))
    return {"input_ids": tokens, "labels": tokens}


def training_step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the model's own loss."""
    tokens = batch["input_ids"]
    mask = (torch.arange(TOKENS, device=tokens.device) < TOKENS - 1).expand_as(tokens).long() if model.padded else None
    loss: Tensor = model(**batch, attention_mask=mask).loss
    return loss
