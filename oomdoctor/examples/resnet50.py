"""ResNet-50 on images of 3 x 224 x 224 in 1,000 classes, trained with SGD and momentum.

    oomdoctor probe resnet50 --target-batch 256 --gpu rtx-4090
    oomdoctor probe resnet50 --target-batch 256 --gpu rtx-4090 --precision bf16
    oomdoctor probe "resnet50:build_model(blocks=(3, 4, 23, 3))" --target-batch 256 --gpu rtx-4090

Most of its memory is activations that wait for backward, most of them of the early layers, whose images are large.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE_SIZE = 224
CLASSES = 1000


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, which the batch norm after it would take out again."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """Reduce the channels, convolve, expand them fourfold, and add the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.residual = nn.Sequential(
            convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            convolution(width, outputs, 1),
        )
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, 4 * width, height / stride, width / stride)."""
        return nn.functional.relu(self.residual(x) + self.shortcut(x), inplace=True)


def stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Return `blocks` bottlenecks, of which the first changes the resolution and the channels."""
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, stride=1) for _ in range(blocks - 1)))


def build_model(
    *, blocks: tuple[int, int, int, int] = (3, 4, 6, 3), width: int = 64, classes: int = CLASSES
) -> nn.Module:
    """Build a ResNet of four stages; (3, 4, 23, 3) blocks make it ResNet-101."""
    return nn.Sequential(
        convolution(3, width, kernel=7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        stage(width, width, blocks[0], stride=1),
        stage(4 * width, 2 * width, blocks[1], stride=2),
        stage(8 * width, 4 * width, blocks[2], stride=2),
        stage(16 * width, 8 * width, blocks[3], stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32 * width, classes),
    )


def make_batch(batch_size: int, *, image_size: int = IMAGE_SIZE, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, image_size, image_size) and their labels (batch)."""
    # One image again and again: memory depends on shapes, not on values, and random numbers take time.
    images = torch.randn(3, image_size, image_size).repeat(batch_size, 1, 1, 1)
    return images, torch.randint(classes, (batch_size,))


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the original recipe: it keeps one value a parameter, where Adam keeps two."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
