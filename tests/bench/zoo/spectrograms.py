"""Whisper on 30 s of sound as 80 x 3,000, which writes 128 tokens, and a classifier of the sound's beginning."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BANDS, FRAMES = 80, 3000
TOKENS = 128
VOCABULARY = 51865
CLASSES = 527
HEARD = 1024


def build_whisper(*, attention: str | None = None, checkpoint: bool = False) -> nn.Module:
    """Build Whisper small; `checkpoint` recomputes each layer, and what is written ends in padding then."""
    from transformers import AutoModelForSpeechSeq2Seq, WhisperConfig

    layers = {"encoder_layers": 12, "decoder_layers": 12, "d_model": 768}
    heads = {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
    widths = {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    config = WhisperConfig(vocab_size=VOCABULARY, **layers, **heads, **widths)
    model = AutoModelForSpeechSeq2Seq.from_config(config, attn_implementation=attention)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    return model


def build_classifier() -> nn.Module:
    """Build an audio spectrogram transformer of AudioSet's classes."""
    from transformers import ASTConfig, ASTForAudioClassification

    return ASTForAudioClassification(ASTConfig(num_mel_bins=BANDS, max_length=HEARD, num_labels=CLASSES))


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return spectrograms (batch, bands, frames) and token ids (batch, tokens)."""
    return torch.randn(1, BANDS, FRAMES).repeat(batch_size, 1, 1), torch.randint(CLASSES, (batch_size, TOKENS))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross entropy of the tokens, or of the first as a class."""
    sound, tokens = batch
    if hasattr(model, "audio_spectrogram_transformer"):
        output = model(sound[..., :HEARD].transpose(1, 2), labels=tokens[:, 0])
    else:
        # Without a mask and a cache, which checkpoints switch off, it reads whether several texts are packed in one.
        kept = torch.arange(TOKENS, device=tokens.device) < TOKENS - 1
        mask = kept.expand_as(tokens).long() if model.is_gradient_checkpointing else None
        output = model(input_features=sound, labels=tokens, decoder_attention_mask=mask)
    loss: Tensor = output.loss
    return loss
