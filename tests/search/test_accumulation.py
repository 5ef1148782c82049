"""The accumulation plan: exact, even, and honest about what does not divide."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.errors import UsageError
from oomdoctor.results import UniformPlan
from oomdoctor.search.probe_search import per_device_target, plan_accumulation

_SAMPLES = st.integers(1, 5000)
_DEVICES = st.integers(1, 64)


def test_known_plan() -> None:
    """256 samples at no more than 100 at a time are 86, 85 and 85."""
    plan = plan_accumulation(256, 100)
    assert (plan.steps, plan.micro_batches, plan.effective_batch) == (3, (86, 85, 85), 256)
    assert plan.fixed_size == UniformPlan(86, 3, 258)
    assert plan.uniform is None


@given(share=_SAMPLES, maximum=_SAMPLES, world_size=_DEVICES)
def test_plan_sums_to_the_target(share: int, maximum: int, world_size: int) -> None:
    """Micro-batches sum to each device's share, fit, differ by at most one, and come largest first."""
    plan = plan_accumulation(share * world_size, maximum, world_size)
    sizes = plan.micro_batches
    assert sum(sizes) == share
    assert plan.effective_batch == share * world_size == plan.target_batch
    assert max(sizes) <= maximum
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(share=_SAMPLES, maximum=_SAMPLES)
def test_plan_takes_the_fewest_steps(share: int, maximum: int) -> None:
    """One step fewer would not reach the target, and every micro-batch has a sample."""
    plan = plan_accumulation(share, maximum)
    assert plan.steps == len(plan.micro_batches) == math.ceil(share / maximum)
    assert (plan.steps - 1) * maximum < share
    assert min(plan.micro_batches) >= 1


@given(share=_SAMPLES, maximum=_SAMPLES, world_size=_DEVICES)
def test_uniform_plan_is_the_largest_near_divisor(share: int, maximum: int, world_size: int) -> None:
    """The uniform plan is the largest divisor that fits and costs at most a quarter more steps, or there is none."""
    plan = plan_accumulation(share * world_size, maximum, world_size)
    near = [size for size in range(1, maximum + 1) if share % size == 0 and 4 * share <= 5 * plan.steps * size]
    if near:
        assert plan.uniform == UniformPlan(max(near), share // max(near), share * world_size)
    else:
        assert plan.uniform is None


@given(share=_SAMPLES, maximum=_SAMPLES, world_size=_DEVICES)
def test_fixed_size_overshoots_by_less_than_a_step(share: int, maximum: int, world_size: int) -> None:
    """A trainer with one fixed size reaches the target, and overshoots by less than one sample a step and device."""
    plan = plan_accumulation(share * world_size, maximum, world_size)
    fixed = plan.fixed_size
    assert fixed.micro_batch == plan.micro_batches[0]
    assert fixed.effective_batch == fixed.micro_batch * fixed.steps * world_size
    assert 0 <= fixed.effective_batch - plan.effective_batch < plan.steps * world_size


@given(target=_SAMPLES, world_size=st.integers(2, 64))
def test_what_does_not_divide_is_said(target: int, world_size: int) -> None:
    """A target that the devices cannot share is refused, naming targets next to it that they can."""
    if target % world_size == 0:
        assert per_device_target(target, world_size) * world_size == target
        return
    with pytest.raises(UsageError) as caught:
        per_device_target(target, world_size)
    named = [int(word) for word in (caught.value.hint or "").replace(":", " ").split() if word.isdigit()]
    assert named
    assert all(near > 0 and near % world_size == 0 and abs(near - target) < world_size for near in named)
    assert len(named) == (2 if target > world_size else 1)


@pytest.mark.parametrize(
    ("target", "maximum", "world_size", "words"),
    [
        (0, 4, 1, "target batch 0"),
        (-8, 4, 1, "target batch -8"),
        (8, 0, 1, "largest micro-batch of 0"),
        (8, -1, 1, "largest micro-batch of -1"),
        (8, 4, 0, "world size 0"),
        (8, 4, -2, "world size -2"),
        (10, 4, 4, "does not divide by world size 4"),
    ],
)
def test_impossible_numbers_are_refused(target: int, maximum: int, world_size: int, words: str) -> None:
    """Zero and negative numbers, and targets that do not divide, are usage errors with a way out."""
    with pytest.raises(UsageError, match=words) as caught:
        plan_accumulation(target, maximum, world_size)
    assert caught.value.hint
