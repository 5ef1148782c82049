"""Convolutional nets of torch's own layers on 3 x 160 x 160 in 200 classes, and one on clips of 16 such images."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

SIDE = 160
FRAMES = 16
CLASSES = 200


def plain(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return a convolution of 3 x 3 with batch norm, ReLU and dropout of channels."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.05),
    )


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return a convolution channel by channel and one across them, with Hardswish and a gate of squeezed channels."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 5, stride, padding=2, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.Hardswish(),
        Gate(inputs),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Gate(nn.Module):
    """Weigh each channel by what the whole image has in all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4)
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        gated: Tensor = x * self.layers(x)
        return gated


def build_plain(*, width: int = 64, channels_last: bool = False, synchronised: bool = False) -> nn.Module:
    """Build eight plain layers; `channels_last` is the layout of the weights and, by that, of what is computed."""
    strides = [(3, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)]
    deep = [(2 * width, 4 * width, 2), (4 * width, 4 * width, 1), (4 * width, 8 * width, 2), (8 * width, 8 * width, 1)]
    layers = [plain(*each) for each in strides + deep]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, CLASSES))
    if synchronised:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def build_separable(*, width: int = 64, channels_last: bool = False) -> nn.Module:
    """Build twelve separable layers, as the nets for phones are made of."""
    widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width, 4 * width]
    pairs = list(zip(widths, [*widths[1:], 8 * width], [1, 2, 1, 2, 1, 1, 1, 2], strict=True))
    head = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * width, CLASSES))
    model = nn.Sequential(nn.Conv2d(3, width, 3, 2, padding=1), *(separable(*pair) for pair in pairs), head)
    return model.to(memory_format=torch.channels_last) if channels_last else model


class Video(nn.Module):
    """Convolutions over space and time; an image stands still for sixteen frames."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv3d(inputs, outputs, 3, padding=1, bias=False),
                    nn.BatchNorm3d(outputs),
                    nn.LeakyReLU(0.1),
                    nn.MaxPool3d(2),
                )
                for inputs, outputs in pairwise(widths)
            ),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(4 * width, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 3, side, side) to logits (batch, classes)."""
        logits: Tensor = self.layers(images[:, :, None].expand(-1, -1, FRAMES, -1, -1).contiguous())
        return logits


def build_video(*, width: int = 32) -> nn.Module:
    """Build three levels of convolutions over space and time."""
    return Video(width)


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, side, side) and their labels (batch)."""
    return torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1), torch.randint(CLASSES, (batch_size,))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy with smoothed labels, of images in the layout of the weights."""
    images, labels = batch
    first = next(parameter for parameter in model.parameters() if parameter.dim() > 1)
    if first.dim() == images.dim() and first.is_contiguous(memory_format=torch.channels_last):
        images = images.to(memory_format=torch.channels_last)
    return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
