"""The models of published runs, trained as those that measured them did; no weights are loaded.

Memory does not depend on values, so that images are left uninitialised. The sizes of the language models are those of
their published configurations.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

SIDE, TOKENS = 86, 128
IMAGES: dict[str, tuple[str, int]] = {
    "ConvNeXtBase": ("convnext_base", 1000),
    "ConvNeXtTiny": ("convnext_tiny", 1000),
    "MnasNet": ("mnasnet1_0", 10),
    "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MobeNetV3Small": ("mobilenet_v3_small", 10),
    "MobileNetV2": ("mobilenet_v2", 1000),
    "RegNetX400MF": ("regnet_x_400mf", 1000),
    "RegNetY400MF": ("regnet_y_400mf", 1000),
    "ResNet101": ("resnet101", 1000),
    "ResNet152": ("resnet152", 1000),
    "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
}
"""Architecture in `torchvision` and number of classes, by the name that the runs are published under."""
_NEO = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]}
_T5 = {"d_kv": 64, "vocab_size": 32128, "decoder_start_token_id": 0}
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cerebras-GPT-111M": ("gpt2", {"n_layer": 10, "n_positions": 2048, "activation_function": "gelu"}),
    "distilgpt2": ("gpt2", {"n_layer": 6}),
    "gpt-neo-125M": ("gpt_neo", _NEO),
    "gpt2": ("gpt2", {}),
    "opt-125m": ("opt", {"ffn_dim": 3072, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}),
    "opt-350m": (
        "opt",
        {
            "ffn_dim": 4096,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "t5-base": ("t5", _T5 | {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "t5-small": ("t5", _T5 | {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}),
}
"""`model_type` in `transformers` and what differs from its defaults, by the same name."""


class _Variables(dict[str, Any]):
    """Variables of a loop; a plain dict has no weak references."""


_chosen: dict[str, Any] = {}


def build_model(name: str, optimizer: str, *, late: bool = False) -> nn.Module:
    """Build a model by its published name.

    Args:
        name: A key of `IMAGES` or of `TEXTS`.
        optimizer: Name of a `torch.optim` class.
        late: Whether gradients are dropped only between the forward and the backward.
    """
    _chosen.update(is_text=name in TEXTS, optimizer=optimizer, late=late)
    if name in TEXTS:
        from transformers import AutoConfig, AutoModelForCausalLM, T5ForConditionalGeneration

        kind, settings = TEXTS[name]
        _chosen["vocabulary"] = settings.get("vocab_size", 50257)
        config = AutoConfig.for_model(kind, **settings)
        build = T5ForConditionalGeneration._from_config if kind == "t5" else AutoModelForCausalLM.from_config
        model: nn.Module = build(config)
        return model
    import torchvision

    architecture, classes = IMAGES[name]
    classifier: nn.Module = torchvision.models.get_model(architecture, weights=None, num_classes=classes)
    return classifier


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return tokens (batch, tokens) and their mask, or images (batch, 3, side, side) and their labels (batch)."""
    if _chosen["is_text"]:
        tokens = torch.randint(5, _chosen["vocabulary"], (batch_size, TOKENS))
        return tokens, torch.ones_like(tokens)
    return torch.empty(batch_size, 3, SIDE, SIDE), torch.zeros(batch_size, dtype=torch.long)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    inputs, other = batch
    loss = _text_loss(model, inputs, other) if _chosen["is_text"] else nn.functional.cross_entropy(model(inputs), other)
    if _chosen["late"]:
        model.zero_grad()
    return loss


def _text_loss(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the model's own loss; its output, with keys and values, stays alive until the next step's."""
    output = model(input_ids=tokens, attention_mask=mask, labels=tokens)
    _chosen["alive"]()["output"] = output
    loss: Tensor = output.loss
    return loss


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the run; with `late` its own zeroing does nothing.

    What a loop's variables hold lives as long as the optimizer, which is a trial's own.
    """
    optimizer: torch.optim.Optimizer = getattr(torch.optim, _chosen["optimizer"])(model.parameters(), lr=1e-3)
    variables = optimizer.variables = _Variables()  # type: ignore[attr-defined]
    _chosen["alive"] = weakref.ref(variables)
    if _chosen["late"]:
        optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]  # noqa: ARG005
    return optimizer
