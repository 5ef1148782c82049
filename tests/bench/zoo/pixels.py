"""Models with an answer for every pixel, on 3 x 512 x 512 in 20 classes: of `transformers`, and a U-Net."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

SIDE = 512
CLASSES = 20


class GroupNormUNet(nn.Module):
    """A U-Net with group norm and SiLU that enlarges by interpolation, as medical images are segmented with."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.encoder = nn.ModuleList(self._block(*pair) for pair in [(3, widths[0]), *pairs])
        self.decoder = nn.ModuleList(self._block(fine + coarse, fine) for fine, coarse in reversed(pairs))
        self.output = nn.Conv2d(widths[0], CLASSES, kernel_size=1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(), nn.Dropout2d(0.1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 3, side, side) to logits (batch, classes, side, side)."""
        bridges, x = [], images
        for encode in self.encoder:
            x = encode(x if not bridges else nn.functional.avg_pool2d(x, 2))
            bridges.append(x)
        bridges.pop()
        for decode in self.decoder:
            x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
            x = decode(torch.cat([bridges.pop(), x], dim=1))
        logits: Tensor = self.output(x)
        return logits


def build_unet(*, channels: int = 32) -> nn.Module:
    """Build the U-Net with that many channels at the first of four levels."""
    return GroupNormUNet(tuple(channels << level for level in range(4)))


def build_segformer() -> nn.Module:
    """Build SegFormer B0 with its decoder's head."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig(num_labels=CLASSES))


def build_upernet() -> nn.Module:
    """Build UPerNet on a ConvNeXt, with its auxiliary head."""
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = ConvNextConfig(out_features=stages, hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3])
    return UperNetForSemanticSegmentation(UperNetConfig(backbone_config=backbone, num_labels=CLASSES))


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, side, side) and a class for every pixel (batch, side, side)."""
    images = torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1)
    return images, torch.randint(CLASSES, (SIDE, SIDE)).repeat(batch_size, 1, 1)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy over all pixels, or what the model says it is."""
    images, labels = batch
    if hasattr(model, "config"):
        loss: Tensor = model(images, labels=labels).loss
        return loss
    return nn.functional.cross_entropy(model(images), labels)
