"""Models of single published measurements, trained as those that measured them did; no weights are loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SIDE, TOKENS = 224, 512
_chosen: dict[str, Any] = {}


def build_model(
    kind: str, optimizer: str, *, dtype: str = "float32", checkpoint: bool = False, late: bool = False
) -> nn.Module:
    """Build a model.

    Args:
        kind: `vit-10` or `vit-1000` (ViT-L/16 of torchvision with so many classes), `bert` (BERT-large for
            classification) or `gpt2`.
        optimizer: Name of a `torch.optim` class, or `in-backward` for Adam that steps each parameter in the backward.
        dtype: Type of the weights.
        checkpoint: Whether blocks are computed again in the backward.
        late: Whether gradients are dropped only between the forward and the backward.
    """
    _chosen.update(kind=kind, optimizer=optimizer, dtype=getattr(torch, dtype), late=late)
    if kind.startswith("vit"):
        import torchvision

        model: nn.Module = torchvision.models.vit_l_16(weights=None, num_classes=int(kind.partition("-")[2]))
    else:
        model = _language_model(kind)
    if checkpoint:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    return model.to(_chosen["dtype"])


class _SoftmaxOfTorch110(torch.autograd.Function):
    """A softmax that keeps its input for the backward too, as PyTorch did before 1.11 (pytorch#49600)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, dim: int, half_to_float: bool) -> Tensor:
        result = torch._softmax(scores, dim, half_to_float)
        ctx.save_for_backward(scores, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        scores, result = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, result, ctx.dim, scores.dtype), None, None


_addcdiv = torch._foreach_addcdiv_


def _addcdiv_of_torch_20(parameters: list[Tensor], averages: list[Tensor], roots: list[Tensor], sizes: Any) -> None:
    """Divide by a copy of the roots, as Adam did until July 2023 (pytorch#104780): it held two of each parameter."""
    _addcdiv(parameters, averages, torch._foreach_add(roots, 0.0), sizes)


def _softmax_of_torch_110(scores: Tensor, dim: int) -> Tensor:
    in_half = scores.dtype is torch.float16
    return _SoftmaxOfTorch110.apply(scores, dim, in_half and torch.is_autocast_enabled("cuda"))


def _language_model(kind: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    if kind == "gpt2":
        model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2"))
        return model
    nn.functional.softmax = _softmax_of_torch_110
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = AutoConfig.for_model("bert", vocab_size=30522, **sizes)
    classifier: nn.Module = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    return classifier


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    """Return images (batch, 3, side, side) or tokens (batch, tokens), and labels (batch)."""
    labels = torch.zeros(batch_size, dtype=torch.long)
    if _chosen["kind"].startswith("vit"):
        return torch.empty(batch_size, 3, SIDE, SIDE, dtype=_chosen["dtype"]), labels
    return torch.randint(5, 30522, (batch_size, TOKENS)), labels


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss."""
    inputs, labels = batch
    if _chosen["kind"].startswith("vit"):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if _chosen["late"]:
            model.zero_grad()
        return loss
    own: Tensor = model(input_ids=inputs, labels=inputs if _chosen["kind"] == "gpt2" else labels).loss
    return own


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the measurement."""
    if _chosen["optimizer"] != "in-backward":
        kind: type[torch.optim.Optimizer] = getattr(torch.optim, _chosen["optimizer"])
        # In the torch of those runs of BERT every optimizer stepped one parameter after the other.
        if _chosen["kind"] == "vit-10":
            torch._foreach_addcdiv_ = _addcdiv_of_torch_20
        optimizer = kind(model.parameters(), foreach=False if _chosen["kind"] == "bert" else None)
        if _chosen["late"]:
            optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]  # noqa: ARG005
        return optimizer
    own = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        own[parameter].step()  # type: ignore[index]
        own[parameter].zero_grad()  # type: ignore[index]

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))])
