"""Accumulated gradients are those of the whole batch, and a loop cannot have them otherwise without being told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oomdoctor import accumulate, plan_accumulation
from oomdoctor.errors import UsageError
from oomdoctor.results import Accumulation

Batch = tuple[Tensor, Tensor]


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()


def _batch(samples: int) -> Batch:
    torch.manual_seed(2)
    return torch.randn(samples, 6, dtype=torch.float64), torch.randint(0, 4, (samples,))


def _loss(model: nn.Module, batch: Batch, reduction: str = "mean") -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels, reduction=reduction)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _of_the_whole(batch: Batch, **options: str) -> list[Tensor]:
    model = _model()
    _loss(model, batch, **options).backward()
    return _gradients(model)


def _accumulated(batch: Batch, plan: Accumulation) -> tuple[list[Tensor], list[int]]:
    model, sizes = _model(), []
    steps = accumulate(batch, plan)
    for micro_batch, _ in steps:
        sizes.append(len(micro_batch[0]))
        steps.backward(_loss(model, micro_batch))
    return _gradients(model), sizes


def _assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("target", "maximum", "samples"),
    [(256, 64, 256), (256, 100, 256), (256, 100, 200), (256, 100, 7), (256, 256, 256), (7, 3, 1), (5, 1, 5)],
    ids=["even", "uneven", "epoch's last", "epoch's last, below one micro-batch", "one step", "one sample", "singles"],
)
def test_gradients_are_those_of_the_whole_batch(target: int, maximum: int, samples: int) -> None:
    """Even, uneven, and smaller batches: gradients equal the whole batch's to 1e-6 in float64."""
    batch = _batch(samples)

    found, sizes = _accumulated(batch, plan_accumulation(target, maximum))

    _assert_same(found, _of_the_whole(batch))
    assert sum(sizes) == samples


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_plan_gives_the_same_gradients(data: st.DataObject) -> None:
    """Whatever the plan and however much smaller the batch, gradients are the same and no micro-batch is too large."""
    target = data.draw(st.integers(1, 60))
    plan = plan_accumulation(target, data.draw(st.integers(1, 70)))
    samples = data.draw(st.integers(1, target))
    batch = _batch(samples)

    found, sizes = _accumulated(batch, plan)

    _assert_same(found, _of_the_whole(batch))
    assert sum(sizes) == samples
    assert max(sizes) <= max(plan.micro_batches)
    assert max(sizes) - min(sizes) <= 1


def test_the_planned_batch_is_split_exactly_as_planned() -> None:
    """256 samples at no more than 100 are 86, 85 and 85 in order, and only the last is the boundary."""
    inputs, labels = _batch(256)
    steps = accumulate((inputs, labels), plan_accumulation(256, 100))

    seen = [(micro_batch, is_boundary, steps.weight) for micro_batch, is_boundary in steps]

    assert len(steps) == 3
    assert [len(part[0]) for part, _, _ in seen] == [86, 85, 85]
    assert [is_boundary for _, is_boundary, _ in seen] == [False, False, True]
    assert [weight for _, _, weight in seen] == [86 / 256, 85 / 256, 85 / 256]
    assert torch.equal(torch.cat([part[0] for part, _, _ in seen]), inputs)
    assert torch.equal(torch.cat([part[1] for part, _, _ in seen]), labels)


def test_one_devices_share_is_what_is_split() -> None:
    """With four devices a plan for 256 splits the 64 samples of one, and refuses the 256."""
    plan = plan_accumulation(256, 24, 4)

    assert [len(part[0]) for part in accumulate(_batch(64), plan)._parts] == [22, 21, 21]
    with pytest.raises(UsageError, match=r"256 samples, and the plan 64 on each device"):
        accumulate(_batch(256), plan)


def test_a_plain_backward_is_stopped_before_the_second_micro_batch() -> None:
    """A loop that leaves the weights out ends with what to write, before any optimizer could step."""
    model, boundaries = _model(), []

    def train() -> None:
        for micro_batch, is_boundary in accumulate(_batch(256), plan_accumulation(256, 100)):
            boundaries.append(is_boundary)
            _loss(model, micro_batch).backward()

    with pytest.raises(UsageError, match="micro-batch 1 of 3 was not weighted") as refusal:
        train()
    assert boundaries == [False]
    assert "steps.backward(loss)" in str(refusal.value.hint)


def test_a_last_micro_batch_without_weight_is_said() -> None:
    """Weighting all micro-batches but the last is refused too, at the loop's end."""
    steps = accumulate(_batch(6), plan_accumulation(6, 3))
    with pytest.raises(UsageError, match="micro-batch 2 of 2 was not weighted"):
        list((is_boundary or steps.weight) for _, is_boundary in steps)  # noqa: C400 - the weight has to be read lazily


def test_one_micro_batch_needs_no_weight() -> None:
    """Where the whole batch is one micro-batch, a plain backward is right and runs."""
    model, batch = _model(), _batch(8)
    for micro_batch, is_boundary in accumulate(batch, plan_accumulation(8, 8)):
        assert is_boundary
        _loss(model, micro_batch).backward()
    _assert_same(_gradients(model), _of_the_whole(batch))


def test_the_weight_may_be_multiplied_by_hand() -> None:
    """`loss * steps.weight` is as good as `steps.backward(loss)`, for trainers with a backward of their own."""
    model, batch = _model(), _batch(10)
    steps = accumulate(batch, plan_accumulation(10, 4))
    for micro_batch, _ in steps:
        (_loss(model, micro_batch) * steps.weight).backward()
    _assert_same(_gradients(model), _of_the_whole(batch))


def test_a_summed_loss_needs_no_weights() -> None:
    """With `reduction="sum"` plain backward passes add up to the whole batch's."""
    model, batch = _model(), _batch(11)
    for micro_batch, _ in accumulate(batch, plan_accumulation(11, 4), reduction="sum"):
        _loss(model, micro_batch, "sum").backward()
    _assert_same(_gradients(model), _of_the_whole(batch, reduction="sum"))


def test_a_mean_over_tokens_is_weighted_by_tokens() -> None:
    """With `count`, a mean over unpadded tokens has the whole batch's gradient, and by samples it has not."""
    torch.manual_seed(3)
    labels = torch.randint(0, 4, (10, 7))
    labels[torch.arange(7).expand(10, 7) >= torch.randint(1, 8, (10, 1))] = -100
    batch = (torch.randn(10, 7, 6, dtype=torch.float64), labels)

    def loss(model: nn.Module, part: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(part[0]).flatten(0, 1), part[1].flatten())

    def gradients(count: Callable[[Batch], float] | None) -> list[Tensor]:
        model = _model()
        steps = accumulate(batch, plan_accumulation(10, 4), count=count)
        for part, _ in steps:
            steps.backward(loss(model, part))
        return _gradients(model)

    whole = _model()
    loss(whole, batch).backward()
    _assert_same(gradients(lambda part: (part[1] != -100).sum()), _gradients(whole))
    assert not torch.allclose(gradients(None)[0], _gradients(whole)[0], rtol=1e-3)


def test_the_step_of_a_gradient_scaler_is_that_of_the_whole_batch() -> None:
    """Scaled, unscaled and clipped at the boundary, a step leaves the weights where the whole batch would."""

    def step(micro_batches: int) -> list[Tensor]:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        steps = accumulate(_batch(24), plan_accumulation(24, -(-24 // micro_batches)))
        for micro_batch, is_boundary in steps:
            steps.backward(scaler.scale(_loss(model, micro_batch)))
            if is_boundary:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
        return [parameter.detach() for parameter in model.parameters()]

    _assert_same(step(5), step(1))


def test_micro_batches_go_to_the_device_one_by_one() -> None:
    """With `device` each micro-batch is put there when its turn comes, and the batch stays where it is."""
    batch = {"x": torch.ones(6, 2), "id": ["a", "b", "c", "d", "e", "f"]}
    steps = accumulate(batch, plan_accumulation(6, 4), device="meta", batch_size=6)
    devices = [(part["x"].device.type, tuple(part["id"]), steps.weight) for part, _ in steps]

    assert devices == [("meta", ("a", "b", "c"), 0.5), ("meta", ("d", "e", "f"), 0.5)]
    assert batch["x"].device.type == "cpu"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"batch": _batch(300)}, "300 samples, and the plan 256"),
        ({"batch": _batch(0)}, "empty"),
        ({"batch": {"lr": 1.0, "name": "a"}}, "no number of samples"),
        ({"batch": (torch.ones(256, 2), torch.ones(255))}, "lead with 256 and 255"),
        ({"batch": _batch(256), "batch_size": 100}, r"a tensor of shape \[256, 6\], and the batch has 100"),
        ({"batch": _batch(256), "reduction": "none"}, "`reduction` is `none`"),
        ({"batch": _batch(256), "count": lambda _: 0}, "nothing in the batch"),
    ],
)
def test_what_cannot_be_split_is_said(arguments: dict[str, Any], problem: str) -> None:
    """A batch that is empty, too large or unclear, and wrong options, are refused with what is wrong."""
    with pytest.raises(UsageError, match=problem) as refusal:
        accumulate(plan=plan_accumulation(256, 100), **arguments)
    assert refusal.value.hint


def test_a_weight_outside_of_the_loop_is_refused() -> None:
    """Before the loop there is no micro-batch to weigh; after it there is no second round."""
    steps = accumulate(_batch(6), plan_accumulation(6, 3))
    with pytest.raises(UsageError, match="before the loop"):
        _ = steps.weight
    assert [steps.weight for _ in steps] == [0.5, 0.5]
    with suppress(StopIteration):
        next(steps)
        pytest.fail("the batch was trained on twice")
