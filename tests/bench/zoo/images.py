"""Image classifiers of `transformers` on 3 x 224 x 224 in 1,000 classes; no weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 224
CLASSES = 1000
SETTINGS: dict[str, dict[str, object]] = {
    "beit": {"image_size": SIDE, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
    "convnext": {},
    "convnextv2": {},
    "deit": {},
    "dinov2": {"image_size": SIDE},
    "efficientnet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": SIDE, "hidden_dim": 1280},
    "focalnet": {},
    "levit": {},
    "mobilenet_v2": {},
    "mobilevit": {"image_size": SIDE},
    "poolformer": {},
    "pvt": {},
    "regnet": {},
    "resnet": {},
    "swin": {"drop_path_rate": 0.1},
    "swinv2": {"window_size": 7},
    "vit": {},
}


def build_model(
    architecture: str, *, attention: str | None = None, checkpoint: bool = False, channels_last: bool = False
) -> nn.Module:
    """Build a classifier by its `model_type`; `checkpoint` recomputes, `channels_last` is the weights' layout."""
    import transformers

    settings = {"num_labels": CLASSES, "attn_implementation": attention} | SETTINGS[architecture]
    config = transformers.AutoConfig.for_model(architecture, **settings)
    # Of what two classes could be built, the automatic choice knows neither.
    named = {"deit": "DeiTForImageClassification", "levit": "LevitForImageClassification"}.get(architecture)
    build = getattr(transformers, named) if named else transformers.AutoModelForImageClassification.from_config
    model = build(config)
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.to(memory_format=torch.channels_last) if channels_last else model


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Return images (batch, 3, side, side) and their labels (batch)."""
    # One image again and again: memory depends on shapes, not on values, and random numbers take time.
    images = torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1)
    return {"pixel_values": images, "labels": torch.randint(CLASSES, (batch_size,))}
