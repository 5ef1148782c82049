"""Targets as a person writes them, for the answers of ten shorthands to equal: each by its shorthand."""

from __future__ import annotations

from typing import Final

_IMAGES: Final = """\
import torch
import torch.nn.functional as F
{imports}

def build_model():
    return {model}

def make_batch(batch_size):
    return torch.randn(batch_size, 3, {side}, {side}), torch.randint(0, 1000, (batch_size,))

def training_step(model, batch):
    x, y = batch
    return {loss}
"""
_TEXT: Final = """\
import torch
import transformers

def build_model():
    config = transformers.{config}
    return transformers.{model}(config)

def make_batch(batch_size):
    ids = torch.randint(0, {vocabulary}, (batch_size, {length}))
    return {{"input_ids": ids, "labels": ids.clone()}}

def training_step(model, batch):
    return model(input_ids=batch["input_ids"], labels=batch["labels"]{more}).loss
"""
_LOSS: Final = "F.cross_entropy(model(x), y)"
_CLASSIFIER: Final = """\
import torch
from transformers import ViTConfig, ViTForImageClassification

def build_model():
    return ViTForImageClassification(ViTConfig(num_labels=10))

def make_batch(batch_size):
    return {"pixel_values": torch.randn(batch_size, 3, 224, 224), "labels": torch.randint(0, 10, (batch_size,))}
"""
_WHISPER: Final = """\
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

def build_model():
    return WhisperForConditionalGeneration(WhisperConfig())

def make_batch(batch_size):
    mel = torch.randn(batch_size, 80, 3000)
    return {"input_features": mel, "labels": torch.randint(0, 51865, (batch_size, 448))}

def training_step(model, batch):
    return model(**batch, use_cache=False).loss
"""


def _image(imports: str, model: str, side: int = 224, loss: str = _LOSS) -> str:
    return _IMAGES.format(imports=imports, model=model, side=side, loss=loss)


BY_HAND: Final = {
    "timm:resnet50": _image("import timm", "timm.create_model('resnet50')"),
    "timm:vit_small_patch16_224": _image("import timm", "timm.create_model('vit_small_patch16_224')"),
    "timm:efficientnet_b3": _image("import timm", "timm.create_model('efficientnet_b3')", 288),
    "torchvision:resnet18": _image("from torchvision.models import resnet18", "resnet18()"),
    "torchvision:swin_t": _image("from torchvision.models import swin_t", "swin_t()"),
    "torchvision:inception_v3": _image(
        "from torchvision.models import inception_v3",
        "inception_v3(init_weights=False)",
        299,
        "(lambda o: F.cross_entropy(o.logits, y) + 0.4 * F.cross_entropy(o.aux_logits, y))(model(x))",
    ),
    "hf:gpt2": _TEXT.format(
        config="GPT2Config()", model="GPT2LMHeadModel", vocabulary=50257, length=1024, more=", use_cache=False"
    ),
    "hf:bert": _TEXT.format(
        config="BertConfig()", model="BertForMaskedLM", vocabulary=30522, length=512, more=""
    ),
    "hf:vit": _CLASSIFIER,
    "hf:whisper": _WHISPER,
}  # fmt: skip
