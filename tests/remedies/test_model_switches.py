"""Models that checkpoint by a switch of their own, as those of transformers and timm do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oomdoctor.errors import NotApplicableError
from oomdoctor.remedies.applied import Changes
from oomdoctor.remedies.file_edit import AppliedChange, patched


class GradientCheckpointingLayer(nn.Module):
    """A layer of the name by which transformers' layers are known."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 8) to the same shape, once more in the backward where it is told to."""
        run = self._gradient_checkpointing_func if self.gradient_checkpointing else lambda function, x: function(x)
        result: torch.Tensor = run(lambda x: self.inner(x).sin(), x)
        return result


class OfTransformers(nn.Module):
    """Four layers, and the switch of transformers."""

    supports_gradient_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(GradientCheckpointingLayer() for _ in range(4)))
        self.given: Any = None

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """Switch every layer on."""
        self.given = gradient_checkpointing_kwargs
        for layer in self.layers:
            layer.gradient_checkpointing = True  # type: ignore[assignment]
            layer._gradient_checkpointing_func = partial(  # type: ignore[assignment]
                checkpoint, **(self.given or {"use_reentrant": False})
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 8) to the same shape."""
        y: torch.Tensor = self.layers(x)
        return y


class OfTimm(nn.Module):
    """Four blocks, and the switch of timm, which is all or none."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(4)))
        self.is_on = False

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT002 - as timm has it
        """Switch it."""
        self.is_on = enable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, 8) to the same shape."""
        y: torch.Tensor = self.blocks(x)
        return y


def changed(model: nn.Module, name: str) -> AppliedChange:
    """What a change says that it did."""
    changes = Changes((name,))
    changes.model(model)
    return changes.applied()[0]


@pytest.mark.parametrize("name", ["checkpoint-keep-matmuls", "checkpoint-keep-attention"])
def test_a_switch_of_transformers_is_told_what_to_keep(name: str) -> None:
    """The options of a checkpoint go through it, in the worker and in the pasted code, with the same gradient."""
    torch.manual_seed(0)
    plain, model, pasted, x = OfTransformers(), OfTransformers(), OfTransformers(), torch.randn(3, 8)
    model.load_state_dict(plain.state_dict())
    applied = changed(model, name)
    assert applied.acts_on == "4 of 4 layers, by `gradient_checkpointing_enable()`"
    assert {*model.given} == {"use_reentrant", "context_fn"}
    for one in (plain, model):
        one(x).sum().backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None)
    edit = applied.edit
    exec("\n".join([*edit.imports, *edit.definitions, *edit.model]), {"model": pasted})  # noqa: S102
    kept, expected = (one.given["context_fn"].args[0] for one in (pasted, model))
    assert kept == expected


@pytest.mark.parametrize(("name", "on"), [("checkpoint-first-3", [1, 1, 1, 0]), ("checkpoint-every-2", [1, 0, 1, 0])])
def test_layers_of_transformers_are_switched_one_by_one(name: str, on: list[int]) -> None:
    """Those that are left out keep their activations."""
    model = OfTransformers()
    changed(model, name)
    assert [int(layer.gradient_checkpointing) for layer in model.layers] == on  # type: ignore[arg-type]


def test_a_switch_of_timm_is_used_for_all_blocks() -> None:
    """How many there are is known all the same, so that fewer can be looked for."""
    model = OfTimm()
    applied = changed(model, "checkpoint")
    assert model.is_on
    assert (applied.count, applied.total) == (4, 4)
    assert applied.edit.model == ("model.set_grad_checkpointing()",)


@pytest.mark.parametrize(
    ("name", "count"),
    [("checkpoint-first-3", 3), ("checkpoint-every-2", 2), ("checkpoint-keep-matmuls", 4), ("checkpoint-first-1", 1)],
)
def test_part_of_a_model_of_timm_is_checkpointed_by_hand(name: str, count: int) -> None:
    """Its switch stays off, and the gradient is the same."""
    torch.manual_seed(0)
    plain, model, x = OfTimm(), OfTimm(), torch.randn(2, 4, 8)
    model.load_state_dict(plain.state_dict())
    applied = changed(model, name)
    assert not model.is_on
    assert (applied.count, applied.total) == (count, 4)
    for one in (plain, model):
        one(x).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))  # type: ignore[arg-type]


def test_layers_of_several_classes_are_all_or_none() -> None:
    """What cannot be told apart is refused by the name of the switch."""

    class Other(GradientCheckpointingLayer):
        """A second class."""

    model = OfTransformers()
    model.layers.append(Other())
    with pytest.raises(NotApplicableError, match=r"`gradient_checkpointing_enable\(\)`, all layers or none"):
        changed(model, "checkpoint-first-2")


HIDING = """\
from torch import nn


def build_model(checkpoint=False):
    return nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(4)))
"""


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint-keep-attention"])
def test_the_patch_runs_where_a_parameter_has_the_name_of_the_function(name: str) -> None:
    """`build_model(checkpoint=False)` is common, and would hide an imported `checkpoint`."""
    space: dict[str, Any] = {}
    exec(HIDING, space)  # noqa: S102
    edit = changed(space["build_model"](), name).edit
    exec(patched(HIDING, edit, "build_model", "AdamW"), space)  # noqa: S102
    model = space["build_model"]()
    assert all(layer.forward.func is checkpoint for layer in model)
