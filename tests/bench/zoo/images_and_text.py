"""Models of `transformers` on an image of 3 x 224 x 224 with 64 tokens of text; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 224
TOKENS = 64
VOCABULARY = 32000
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": TOKENS, "hidden_size": 512, "num_attention_heads": 8}


def build_clip(*, checkpoint: bool = False) -> nn.Module:
    """Build CLIP ViT-B/32, trained by the contrast of all pairs in the batch."""
    from transformers import CLIPConfig, CLIPModel

    text = TEXT | {"intermediate_size": 2048, "eos_token_id": VOCABULARY - 1}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 32}))
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def build_siglip() -> nn.Module:
    """Build SigLIP base with patches of 16, trained by a sigmoid of every pair."""
    from transformers import SiglipConfig, SiglipModel

    text = TEXT | {"hidden_size": 768, "num_attention_heads": 12}
    return SiglipModel(SiglipConfig(text_config=text, vision_config={"image_size": SIDE}))


def build_blip() -> nn.Module:
    """Build BLIP, which writes the text below the image."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    text = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0}
    return BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config={"image_size": SIDE}))


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, side, side) and token ids (batch, tokens)."""
    return torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1), torch.randint(5, VOCABULARY, (batch_size, TOKENS))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the model's own loss: of the pairs, or of the text."""
    images, tokens = batch
    writes = model.config.model_type == "blip"
    how = {"labels": tokens} if writes else {"return_loss": True}
    loss: Tensor = model(input_ids=tokens, pixel_values=images, **how).loss
    return loss
