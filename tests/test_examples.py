"""The shipped examples are the models that they say they are, and keep the contract of a target."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from oomdoctor.examples import gpt2, lstm, resnet50, unet, vit_b16

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

BATCH_SIZE = 2


@dataclass(frozen=True)
class Example:
    """A shipped example, its true size, and the arguments that make it small enough for a test."""

    module: ModuleType
    parameters: int
    shapes: tuple[tuple[int, ...], ...]
    optimizer: type[torch.optim.Optimizer]
    model_arguments: dict[str, Any] = field(default_factory=dict)
    batch_arguments: dict[str, Any] = field(default_factory=dict)

    def small_model(self, **changes: Any) -> nn.Module:
        """Build the example small, always with the same weights."""
        torch.manual_seed(0)
        model: nn.Module = self.module.build_model(**{**self.model_arguments, **changes})
        return model

    def small_batch(self) -> tuple[torch.Tensor, ...]:
        """Draw a batch that fits the small model, always the same one."""
        torch.manual_seed(0)
        batch: tuple[torch.Tensor, ...] = self.module.make_batch(BATCH_SIZE, **self.batch_arguments)
        return batch

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer that the example names, AdamW where it names none."""
        if not hasattr(self.module, "build_optimizer"):
            return torch.optim.AdamW(model.parameters())
        optimizer: torch.optim.Optimizer = self.module.build_optimizer(model)
        return optimizer

    def small_loss(self, model: nn.Module) -> torch.Tensor:
        """Return the loss of the small batch."""
        loss: torch.Tensor = self.module.training_step(model, self.small_batch())
        return loss


GPT2 = Example(
    gpt2,
    parameters=124_439_808,
    shapes=((2, 1024), (2, 1024)),
    optimizer=torch.optim.AdamW,
    model_arguments={"layers": 2, "width": 32, "heads": 4, "context": 16, "vocabulary": 64},
    batch_arguments={"context": 16, "vocabulary": 64},
)
RESNET50 = Example(
    resnet50,
    parameters=25_557_032,
    shapes=((2, 3, 224, 224), (2,)),
    optimizer=torch.optim.SGD,
    model_arguments={"blocks": (1, 2, 1, 1), "width": 8, "classes": 10},
    batch_arguments={"image_size": 64, "classes": 10},
)
VIT_B16 = Example(
    vit_b16,
    parameters=86_567_656,
    shapes=((2, 3, 224, 224), (2,)),
    optimizer=torch.optim.AdamW,
    model_arguments={"layers": 2, "width": 32, "heads": 4, "image_size": 32, "classes": 10},
    batch_arguments={"image_size": 32, "classes": 10},
)
LSTM = Example(
    lstm,
    parameters=50_065_078,
    shapes=((2, 70), (2, 70)),
    optimizer=torch.optim.Adam,
    model_arguments={"width": 16, "vocabulary": 64},
    batch_arguments={"tokens": 8, "vocabulary": 64},
)
UNET = Example(
    unet,
    parameters=31_037_958,
    shapes=((2, 3, 1400, 2100), (2, 1400, 2100)),
    optimizer=torch.optim.Adam,
    model_arguments={"channels": 4},
    batch_arguments={"height": 40, "width": 53},
)
EXAMPLES = [
    pytest.param(example, id=example.module.__name__.rpartition(".")[2])
    for example in (GPT2, RESNET50, VIT_B16, LSTM, UNET)
]
every_example = pytest.mark.parametrize("example", EXAMPLES)


def count_parameters(model: nn.Module) -> int:
    """Count the values that training changes; a tied one counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


@every_example
def test_has_the_published_number_of_parameters(example: Example) -> None:
    """An example at its defaults is the published model, to the parameter."""
    assert count_parameters(example.module.build_model()) == example.parameters


@every_example
def test_draws_samples_of_real_size(example: Example) -> None:
    """A batch at its defaults has the batch size in front and samples of real size behind it."""
    batch = example.module.make_batch(BATCH_SIZE)

    assert tuple(tuple(tensor.shape) for tensor in batch) == example.shapes


@every_example
def test_batch_shares_no_memory_between_its_samples(example: Example) -> None:
    """Every value of a batch has its own place, so that the batch takes on the device what it seems to take."""
    for tensor in example.small_batch():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


@every_example
def test_loss_is_a_scalar_attached_to_the_graph(example: Example) -> None:
    """`training_step` returns one number, and from it every parameter gets its gradient."""
    model = example.small_model()
    loss = example.small_loss(model)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.shape == ()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@every_example
def test_loss_starts_as_that_of_a_guess(example: Example) -> None:
    """The untrained model's loss is near that of an even guess, the logarithm of the number of classes."""
    classes = example.batch_arguments.get("vocabulary") or example.batch_arguments.get("classes") or unet.CLASSES
    loss = example.small_loss(example.small_model())

    assert loss.item() == pytest.approx(math.log(classes), rel=0.3)


@every_example
def test_optimizer_updates_every_parameter(example: Example) -> None:
    """The example's optimizer is the one that its docstring names, and holds each parameter once."""
    model = example.small_model()
    optimizer = example.build_optimizer(model)
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    assert type(optimizer) is example.optimizer
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


@every_example
def test_its_optimizer_brings_the_loss_down(example: Example) -> None:
    """A few steps with the example's optimizer fit one batch better than none."""
    model = example.small_model()
    optimizer = example.build_optimizer(model)
    losses = []
    for _ in range(8):
        loss = example.small_loss(model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())

    assert losses[-1] < losses[0]


@pytest.fixture
def _without_onednn() -> Iterator[None]:
    """Compute with PyTorch's own kernels, which have every type on every CPU; oneDNN's fp16 LSTM needs a recent one."""
    torch._C._set_mkldnn_enabled(False)  # noqa: FBT003
    yield
    torch._C._set_mkldnn_enabled(True)  # noqa: FBT003


@pytest.mark.usefixtures("_without_onednn")
@every_example
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_trains_in_mixed_precision_as_it_is(example: Example, dtype: torch.dtype) -> None:
    """Under autocast the layers compute in the short type, the loss stays fp32, and the weights get fp32 gradients."""
    model = example.small_model()
    computed: set[torch.dtype] = set()
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(lambda _layer, _inputs, output: computed.add(output.dtype))
    with torch.autocast("cpu", dtype=dtype):
        loss = example.small_loss(model)
    loss.backward()  # type: ignore[no-untyped-call]

    assert computed == {dtype}
    assert loss.dtype is torch.float32
    assert loss.isfinite()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


@pytest.mark.parametrize(
    ("module", "arguments", "parameters"),
    [
        pytest.param(gpt2, {"layers": 24, "width": 1024, "heads": 16}, 354_823_168, id="gpt2-medium"),
        pytest.param(resnet50, {"blocks": (3, 4, 23, 3)}, 44_549_160, id="resnet101"),
        pytest.param(vit_b16, {"layers": 24, "width": 1024, "heads": 16}, 304_326_632, id="vit-l16"),
        pytest.param(lstm, {"width": 1500, "dropout": 0.65}, 135_891_278, id="lstm-large"),
    ],
)
def test_arguments_make_the_larger_relatives(module: ModuleType, arguments: dict[str, Any], parameters: int) -> None:
    """The arguments that the module's docstring shows make the larger published model."""
    with torch.device("meta"):
        model = module.build_model(**arguments)

    assert count_parameters(model) == parameters


def test_gpt2_sees_no_token_that_comes_later() -> None:
    """A changed token changes the logits at its own place and after it, never before it."""
    model = GPT2.small_model()
    tokens, _ = GPT2.small_batch()
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 64
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))

    assert torch.all(difference[:8] == 0)
    assert torch.all(difference[8:] > 0)


def test_gpt2_output_layer_is_its_token_embedding() -> None:
    """A token that is not in the batch has its embedding trained too, because it could have been predicted."""
    model = GPT2.small_model()
    tokens, _ = GPT2.small_batch()
    GPT2.small_loss(model).backward()  # type: ignore[no-untyped-call]
    gradient = model.get_parameter("tokens").grad
    absent = torch.ones(64, dtype=torch.bool).index_fill(0, tokens.flatten(), value=False)

    assert gradient is not None
    assert absent.any()
    assert torch.all(gradient[absent].abs().amax(dim=1) > 0)


def test_gpt2_targets_are_the_tokens_that_follow() -> None:
    """A target is the next token of the same sample."""
    tokens, targets = GPT2.small_batch()

    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_gpt2_with_checkpointing_trains_as_without() -> None:
    """Checkpointing runs every block once more in backward and changes neither the loss nor a gradient."""
    plain, recomputed = GPT2.small_model(), GPT2.small_model(checkpoint=True)
    calls: list[nn.Module] = []
    for model in (plain, recomputed):
        model.get_submodule("blocks.0.attention").register_forward_hook(lambda layer, *_: calls.append(layer))
    losses = [GPT2.small_loss(model) for model in (plain, recomputed)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]

    assert calls.count(plain.get_submodule("blocks.0.attention")) == 1
    assert calls.count(recomputed.get_submodule("blocks.0.attention")) == 2
    torch.testing.assert_close(losses[0], losses[1])
    for left, right in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)


def test_gpt2_refuses_a_batch_that_does_not_fill_its_context() -> None:
    """A model of a longer context is not measured on shorter samples without a word."""
    model = GPT2.small_model(context=32)

    with pytest.raises(ValueError, match="16 tokens in the batch, 32 in the model's context"):
        GPT2.small_loss(model)


@pytest.mark.parametrize(("height", "width"), [(32, 48), (17, 31), (40, 53), (64, 33)])
def test_unet_classifies_every_pixel_of_any_size(height: int, width: int) -> None:
    """Sizes that halving does not divide come back as they went in."""
    model = UNET.small_model()
    images, labels = unet.make_batch(1, height=height, width=width)

    assert model(images).shape == (1, unet.CLASSES, height, width)
    assert labels.shape == (1, height, width)


def test_unet_carries_fine_detail_over_the_bridge() -> None:
    """A pixel's own value reaches its logits even where the way down and up is cut."""
    model = UNET.small_model().eval()
    last = model.get_submodule("enlarge.3")
    last.register_forward_hook(lambda _layer, _inputs, output: torch.zeros_like(output))
    images, _ = UNET.small_batch()

    assert not torch.allclose(model(images), model(images.flip(-1)))
