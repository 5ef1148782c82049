"""Detectors on 3 x 512 x 512: anchors on a feature pyramid, and YOLOS.

Which box is to find which object is drawn with the batch: matching reads what was computed, and from a null GPU come
zeros. All else of the loss is what these detectors are trained with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 512
CLASSES = 90
ANCHORS = 9
STRIDES = (8, 16, 32)
QUERIES = 100
POSITIONS = sum((SIDE // stride) ** 2 for stride in STRIDES)


class Pyramid(nn.Module):
    """A ResNet's last three stages joined from the top down, with heads for classes and boxes that all levels share."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from transformers import ResNetBackbone, ResNetConfig

        self.backbone = ResNetBackbone(ResNetConfig(out_features=["stage2", "stage3", "stage4"]))
        self.lateral = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in STRIDES)
        self.classes = self._head(width, ANCHORS * CLASSES)
        self.boxes = self._head(width, ANCHORS * 4)

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Sequential:
        layers = [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(4)]
        return nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 3, side, side) to logits (batch, anchors, classes) and offsets (batch, anchors, 4)."""
        maps = [join(x) for join, x in zip(self.lateral, self.backbone(images).feature_maps, strict=True)]
        for level in (1, 0):
            maps[level] = maps[level] + nn.functional.interpolate(maps[level + 1], scale_factor=2, mode="nearest")
        maps = [smooth(x) for smooth, x in zip(self.smooth, maps, strict=True)]
        return self._all(self.classes, maps, CLASSES), self._all(self.boxes, maps, 4)

    @staticmethod
    def _all(head: nn.Module, maps: list[Tensor], last: int) -> Tensor:
        return torch.cat([head(x).permute(0, 2, 3, 1).reshape(len(x), -1, last) for x in maps], dim=1)


def build_pyramid(*, width: int = 256) -> nn.Module:
    """Build a detector as RetinaNet is one, on ResNet-50."""
    return Pyramid(width)


def build_yolos() -> nn.Module:
    """Build YOLOS, a vision transformer of 384 features with a token for every object."""
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    settings = {"image_size": [SIDE, SIDE], "num_detection_tokens": QUERIES, "num_labels": CLASSES}
    return YolosForObjectDetection(YolosConfig(**sizes, **settings))


def make_batch(batch_size: int) -> dict[str, Tensor]:
    """Return images, and for every anchor and every query its class and its box."""
    anchors = POSITIONS * ANCHORS
    return {
        "images": torch.randn(3, SIDE, SIDE).repeat(batch_size, 1, 1, 1),
        "anchor_classes": torch.randint(CLASSES, (1, anchors)).repeat(batch_size, 1),
        "anchor_boxes": torch.rand(1, anchors, 4).repeat(batch_size, 1, 1),
        "query_classes": torch.randint(CLASSES, (batch_size, QUERIES)),
        "query_boxes": torch.rand(batch_size, QUERIES, 4),
    }


def training_step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of the classes and of the boxes: focal and smooth L1, or as DETR has them."""
    if isinstance(model, Pyramid):
        logits, boxes = model(batch["images"])
        return focal(logits, batch["anchor_classes"]) + nn.functional.smooth_l1_loss(boxes, batch["anchor_boxes"])
    output = model(pixel_values=batch["images"])
    classes = nn.functional.cross_entropy(output.logits.transpose(1, 2), batch["query_classes"])
    return classes + 5 * nn.functional.l1_loss(output.pred_boxes, batch["query_boxes"])


def focal(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the focal loss of Lin et al. (2017), with a focus of 2 and a balance of one quarter."""
    targets = nn.functional.one_hot(classes, CLASSES).to(logits.dtype)
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    right = torch.exp(-entropy)
    balance = 0.25 * targets + 0.75 * (1 - targets)
    return (balance * (1 - right) ** 2 * entropy).mean()
