"""Remedies that keep the numbers, or all but rounding: their gradients and weights are those without them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import nn

from oomdoctor.errors import NotApplicableError
from oomdoctor.remedies import linear_cross_entropy
from oomdoctor.remedies.applied import CHANGES, Changes
from oomdoctor.remedies.catalogue import BY_ID

VOCABULARY = 96
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}
HAS_PIECES = hasattr(nn, "LinearCrossEntropyOptions")


class Block(nn.Module):
    """Attention and a feed-forward layer, with dropout."""

    rate = 0.1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Linear(width, 3 * width)
        self.forward_layer = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(self.rate)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, width) to the same shape."""
        query, key, value = self.attention(x).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.forward_layer(x)


class Model(nn.Module):
    """A small language model with a bias in its last layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens) to logits."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.output(x)
        return logits


def whole(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The loss as most write it."""
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def shifted(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The loss as transformers wrote it, with padding and a sum."""
    labels = tokens.clone()
    labels[:, :3] = -100
    logits, labels = model(tokens)[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), ignore_index=-100, reduction="sum")


def trained(names: tuple[str, ...], dtype: torch.dtype, step: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the first step, where they outlive it, and weights after two, with the changes of these names."""
    torch.manual_seed(0)
    model = Model().to(dtype)
    changes = Changes(names)
    model = changes.model(copy.deepcopy(model))
    # A large epsilon: the bias of keys has no gradient but rounding, which Adam would make a step of the full rate of.
    optimizer = changes.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2))
    gradients = []
    for number in range(2):
        torch.manual_seed(number + 1)
        tokens = changes.batch(torch.randint(VOCABULARY, (6, 16)))
        with changes.forward():
            loss = step(model, tokens)
        loss.backward()
        gradients += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    changes.end()
    assert changes.applied()[0].name == names[0] if names else True
    return [*gradients, *(parameter.detach() for parameter in model.parameters())]


EXACT = [
    remedy.change
    for remedy in BY_ID.values()
    if remedy.change and remedy.exactness != "other" and not remedy.needs  # kernels of others run on GPUs alone
]
PARTITIONED = "aot_eager_decomp_partition"
"""A backend of `torch.compile` that keeps or computes again what the budget says, and generates no code."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", [*EXACT, "checkpoint-first-3"])
def test_gradients_and_weights_are_those_without_it(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included, but where code is generated: what is computed again draws the same numbers."""
    if name.startswith("compile"):
        compiled = nn.Module.compile
        backend = "inductor" if (name, dtype) == ("compile", torch.float32) else PARTITIONED  # generating code is slow
        monkeypatch.setattr(nn.Module, "compile", lambda self, **given: compiled(self, backend=backend, **given))
        monkeypatch.setattr(Block, "rate", 0.0)  # compiled code draws other numbers
    if name == "fused-cross-entropy" and not HAS_PIECES:
        with pytest.raises(NotApplicableError, match="liger-kernel"):
            Changes((name,)).model(Model())
        return
    for step in (whole, shifted):
        plain = trained((), dtype, step)
        with functorch_config.patch(activation_memory_budget=1.0):  # what a change sets is set back
            changed = trained((name,), dtype, step)
        plain = plain[-len(changed) :]  # a step in the backward leaves no gradients
        for one, other in zip(plain, changed, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=TOLERANCES[dtype] * max(1.0, one.abs().max().item()))


def test_the_comparison_sees_what_trains_otherwise() -> None:
    """Weights in bfloat16 and another optimizer are told apart."""
    plain = trained((), torch.float32, whole)
    for name in ("bf16-weights", "adafactor"):
        changed = trained((name,), torch.float32, whole)
        assert not all(torch.allclose(a, b.float(), atol=2e-5) for a, b in zip(plain, changed, strict=True))


def test_every_change_belongs_to_a_remedy() -> None:
    """What a worker knows is what the catalogue offers, and blocks by number besides."""
    named = {remedy.change for remedy in BY_ID.values() if remedy.change}
    assert {*CHANGES} - named == {"checkpoint-first", "checkpoint-every"}
    assert {name for name in named - {*CHANGES} if not name.startswith("compile-")} == {"checkpoint-every-2"}


@pytest.mark.parametrize(
    ("name", "model", "reason"),
    [
        ("checkpoint", nn.Linear(4, 4), "no class of modules is repeated"),
        ("freeze-half", nn.Sequential(nn.Linear(4, 4)), "no class of modules is repeated"),
        ("lora", nn.Linear(4, 4), "no class of modules is repeated"),
        ("lora", nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(2))), "no class of modules is repeated"),
        ("bf16-weights", nn.Linear(4, 4).bfloat16(), "bfloat16 already"),
        ("liger-cross-entropy", nn.Linear(4, 4), "`liger_kernel` is not installed"),
        ("cut-cross-entropy", nn.Linear(4, 4), "`cut_cross_entropy` is not installed"),
        ("adamw-8bit", nn.Linear(4, 4), "neither torchao nor bitsandbytes"),
        ("fused-cross-entropy", nn.Linear(4, 4), "linear"),
    ],
)
def test_says_why_it_does_not_apply(name: str, model: nn.Module, reason: str) -> None:
    """A change that has nothing to do says so when the model is there."""
    with pytest.raises(NotApplicableError, match=reason):
        Changes((name,)).model(model)


def test_a_compiled_model_is_not_compiled_again() -> None:
    """It says so when the model is there, as others do that have nothing to change."""
    with pytest.raises(NotApplicableError, match="compiled already"):
        Changes(("compile",)).model(torch.compile(nn.Linear(4, 4)))


def test_lora_begins_with_the_numbers_of_the_model_and_trains_narrow_matrices_alone() -> None:
    """All linear layers of the blocks have them; the pasted class does the same."""
    torch.manual_seed(0)
    model, tokens = Model().eval(), torch.randint(VOCABULARY, (2, 8))
    expected = model(tokens)
    changes = Changes(("lora",))
    changes.model(model)
    assert torch.equal(model(tokens), expected)
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trains) == 2 * 2 * 4
    assert all(name.endswith((".down.weight", ".up.weight")) for name in trains)
    (applied,) = changes.applied()
    assert applied.acts_on.startswith("8 linear layers of 4 blocks (`blocks.*`, `Block` at test_remedy_gradients.py:")
    pasted = Model().eval()
    exec("\n".join([*applied.edit.definitions, *applied.edit.model]), {"torch": torch, "model": pasted})  # noqa: S102
    assert [(n, p.shape, p.requires_grad) for n, p in pasted.named_parameters()] == [
        (n, p.shape, p.requires_grad) for n, p in model.named_parameters()
    ]


@pytest.mark.skipif(not HAS_PIECES, reason="needs a PyTorch with `LinearCrossEntropyOptions`")
def test_the_layer_of_the_logits_is_found_beside_wider_ones_in_blocks() -> None:
    """A classifier's last layer has fewer outputs than its blocks are wide."""
    classifier = nn.Sequential(nn.Linear(8, 8), *(Block(256) for _ in range(2)), nn.Linear(256, 100))
    changes = Changes(("fused-cross-entropy",))
    changes.model(classifier)
    assert changes.applied()[0].acts_on == "the linear layer with 100 outputs and the `cross_entropy` on it"


def liger(*given: object, ce_weight: object = None, **options: object) -> torch.Tensor:
    """What liger-kernel's function takes, computed plainly."""
    hidden, weight, target = given
    logits = nn.functional.linear(hidden, weight, options.pop("bias"))  # type: ignore[arg-type]
    return nn.functional.cross_entropy(logits, target, weight=ce_weight, **options)  # type: ignore[arg-type]


def cut(*given: object, bias: object = None, **options: object) -> torch.Tensor:
    """What cut-cross-entropy's function takes, computed plainly."""
    assert {*options} <= {"ignore_index", "reduction"}
    return liger(*given, bias=bias, **options)


def cut_without_bias(*given: object, **options: object) -> torch.Tensor:
    """What that of its release 25.1.1 takes."""
    assert "bias" not in options
    return cut(*given, **options)


@pytest.mark.parametrize("step", [whole, shifted])
@pytest.mark.parametrize(
    ("name", "module", "functions"),
    [
        (
            "liger-cross-entropy",
            "liger_kernel.transformers.functional",
            {"liger_fused_linear_cross_entropy": liger},
        ),
        ("cut-cross-entropy", "cut_cross_entropy", {"linear_cross_entropy": cut}),
    ],
)
def test_losses_of_other_libraries_are_given_what_they_take(
    name: str,
    module: str,
    functions: dict[str, Callable[..., torch.Tensor]],
    step: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layer, targets and options of the cross entropy reach their functions, whose kernels run on GPUs alone."""
    monkeypatch.setattr(linear_cross_entropy, "find_spec", lambda _: True)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**functions))
    for one, other in zip(trained((), torch.float64, step), trained((name,), torch.float64, step), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_a_library_that_takes_no_bias_is_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with a bias is refused by name, and one without is computed as ever."""
    monkeypatch.setattr(linear_cross_entropy, "find_spec", lambda _: True)
    functions = SimpleNamespace(linear_cross_entropy=cut_without_bias)
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", functions)
    hidden, weight, target = torch.randn(6, 4), torch.randn(64, 4), torch.randint(64, (6,))
    mode = linear_cross_entropy.fused_linear_cross_entropy(64, "cut_cross_entropy")
    with mode:
        loss = nn.functional.cross_entropy(nn.functional.linear(hidden, weight), target)
        with pytest.raises(NotApplicableError, match="the layer has a bias"):
            nn.functional.cross_entropy(nn.functional.linear(hidden, weight, torch.ones(64)), target)
    assert mode.fused == 1
    assert torch.allclose(loss, nn.functional.cross_entropy(hidden @ weight.T, target))


@pytest.mark.skipif(not HAS_PIECES, reason="needs a PyTorch with `LinearCrossEntropyOptions`")
@pytest.mark.parametrize("use", [lambda logits: logits.mean(), lambda logits: logits.softmax(-1).square().sum()])
def test_logits_for_anything_else_are_computed_as_ever(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What is not a cross entropy gets the numbers with their gradient, and the remedy has had nothing to do."""
    torch.manual_seed(0)
    model, tokens = Model(), torch.randint(VOCABULARY, (2, 8))
    model.eval()
    use(model(tokens)).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    changes = Changes(("fused-cross-entropy",))
    changes.model(model)
    with pytest.raises(NotApplicableError, match="goes straight into"), changes.forward():
        use(model(tokens)).backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
