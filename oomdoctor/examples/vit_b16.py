"""ViT-B/16 on images of 3 x 224 x 224 in 1,000 classes, trained with AdamW.

    oomdoctor probe vit_b16 --target-batch 4096 --gpu rtx-4090
    oomdoctor probe vit_b16 --target-batch 4096 --gpu rtx-4090 --precision bf16
    oomdoctor probe "vit_b16:build_model(layers=24, width=1024, heads=16)" --target-batch 4096 --gpu rtx-4090

An image becomes 196 patches of 16 x 16 pixels and one class token; from there on it is a transformer without a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE_SIZE = 224
PATCH_SIZE = 16
CLASSES = 1000


class Attention(nn.Module):
    """Self-attention of every token to every token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        y: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """Attention, then a feed-forward layer, each normalised first and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width, eps=1e-6), Attention(width, heads))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        x = x + self.attention(x)
        x = x + self.feed_forward(x)
        return x  # noqa: RET504


class VisionTransformer(nn.Module):
    """Patches and a class token through the blocks; the class token alone is classified."""

    def __init__(self, *, layers: int, width: int, heads: int, image_size: int, classes: int) -> None:
        super().__init__()
        tokens = (image_size // PATCH_SIZE) ** 2 + 1
        self.patches = nn.Conv2d(3, width, kernel_size=PATCH_SIZE, stride=PATCH_SIZE)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.normal(0.0, 0.02, (tokens, width)))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, 3, image_size, image_size) to logits (batch, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(images), -1, -1)
        x = torch.cat([class_token, patches], dim=1) + self.positions
        x = self.norm(self.blocks(x))
        logits: Tensor = self.head(x[:, 0])
        return logits


def build_model(
    *, layers: int = 12, width: int = 768, heads: int = 12, image_size: int = IMAGE_SIZE, classes: int = CLASSES
) -> nn.Module:
    """Build a ViT; (24, 1024, 16) layers, width and heads make it ViT-L/16."""
    return VisionTransformer(layers=layers, width=width, heads=heads, image_size=image_size, classes=classes)


def make_batch(batch_size: int, *, image_size: int = IMAGE_SIZE, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, image_size, image_size) and their labels (batch)."""
    # One image again and again: memory depends on shapes, not on values, and random numbers take time.
    images = torch.randn(3, image_size, image_size).repeat(batch_size, 1, 1, 1)
    return images, torch.randint(classes, (batch_size,))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)
