"""U-Net on satellite images of 3 x 1400 x 2100 in 6 classes a pixel, trained with Adam.

    oomdoctor probe unet --target-batch 16 --gpu a100-sxm4-80gb
    oomdoctor probe unet --target-batch 16 --gpu a100-sxm4-80gb --precision bf16
    oomdoctor probe "unet:build_model(channels=32)" --target-batch 16 --gpu rtx-4090

The original five levels of 64 to 1,024 channels, with two changes that are usual today: batch norm, and convolutions
that keep the image's size. One feature map of the first level takes 726 MiB a sample in fp32: micro-batches of a few.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

HEIGHT = 1400
WIDTH = 2100
CLASSES = 6
LEVELS = 5


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Return two convolutions of 3 x 3, each with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """An encoder that halves the image, a decoder that doubles it, and a bridge between them at every level."""

    def __init__(self, *, channels: int, classes: int) -> None:
        super().__init__()
        widths = [channels << level for level in range(LEVELS)]
        pairs = list(pairwise(widths))
        self.encoder = nn.ModuleList(double_convolution(fine, coarse) for fine, coarse in [(3, channels), *pairs])
        self.shrink = nn.MaxPool2d(2)
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, kernel_size=2, stride=2) for fine, coarse in reversed(pairs)
        )
        self.decoder = nn.ModuleList(double_convolution(coarse, fine) for fine, coarse in reversed(pairs))
        self.output = nn.Conv2d(channels, classes, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, 3, height, width) of any size to logits (batch, classes, height, width)."""
        height, width = images.shape[-2:]
        # Halving must come out even at every level: the image is mirrored outwards, and the logits are cropped.
        step = 2 ** (LEVELS - 1)
        x = nn.functional.pad(images, (0, -width % step, 0, -height % step), mode="reflect")
        bridges = []
        for encode in self.encoder[:-1]:
            bridges.append(encode(x))
            x = self.shrink(bridges[-1])
        x = self.encoder[-1](x)
        for enlarge, decode in zip(self.enlarge, self.decoder, strict=True):
            x = decode(torch.cat([bridges.pop(), enlarge(x)], dim=1))
        logits: Tensor = self.output(x)
        return logits[..., :height, :width]


def build_model(*, channels: int = 64, classes: int = CLASSES) -> nn.Module:
    """Build a U-Net with that many channels at its first level, twice as many at each one below."""
    return UNet(channels=channels, classes=classes)


def make_batch(
    batch_size: int, *, height: int = HEIGHT, width: int = WIDTH, classes: int = CLASSES
) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, height, width) and a label for every pixel (batch, height, width)."""
    # One image again and again: memory depends on shapes, not on values, and random numbers take time.
    images = torch.randn(3, height, width).repeat(batch_size, 1, 1, 1)
    labels = torch.randint(classes, (height, width)).repeat(batch_size, 1, 1)
    return images, labels


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy over all pixels."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam: with batch norm it trains a U-Net at its default rate; its state is small beside the activations."""
    return torch.optim.Adam(model.parameters(), lr=1e-3)
