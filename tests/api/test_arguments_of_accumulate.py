"""Wrong arguments of `accumulate` are said before anything is trained, and a count of 0 has no part in a mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oomdoctor import accumulate, plan_accumulation
from oomdoctor.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"plan": 2}, "`plan` is `2`, which is no plan"),
        ({"plan": None}, "`plan` is `None`"),
        ({"batch_size": "4"}, "`batch_size` is `'4'`, which is no whole number"),
        ({"batch_size": 4.0}, r"`batch_size` is `4\.0`"),
        ({"batch_size": True}, "`batch_size` is `True`"),
        ({"batch_size": -1}, "`batch_size` is `-1`, which is no number of samples"),
        ({"batch_size": 0}, "the batch is empty"),
        ({"count": 4}, "`count` is `4`, which is no function"),
        ({"count": lambda _: None}, "`count` returned `None`, which is no count"),
        ({"count": lambda _: "2"}, "`count` returned `'2'`"),
        ({"count": lambda _: float("nan")}, "`count` returned `nan`"),
        ({"count": lambda _: float("inf")}, "`count` returned `inf`"),
        ({"count": lambda part: 1.0 if part[0] < 2 else -0.5}, r"`count` returned `-0\.5`"),
        ({"count": lambda part: part}, "`count` returned `tensor"),
        ({"count": lambda _: 10**400}, "`count` returned `1000"),
        ({"device": "cude"}, "`device` is `'cude'`, which PyTorch does not know"),
        ({"device": 1.5}, r"`device` is `1\.5`"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], problem: str) -> None:
    """An argument of another kind is a UsageError with a hint, and not an error of Python's from within."""
    with pytest.raises(UsageError, match=problem) as refusal:
        accumulate(**{"batch": torch.arange(4), "plan": plan_accumulation(4, 2), **arguments})
    assert refusal.value.hint


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    """A batch size or a count may be NumPy's or a tensor's."""
    plan = plan_accumulation(4, 2)
    assert len(accumulate(torch.arange(4), plan, batch_size=np.int64(4))) == 2
    steps = accumulate(torch.arange(4), plan, count=lambda part: part.sum() if part[0] else np.float32(3))
    assert [steps.weight for _ in steps] == [3 / 8, 5 / 8]


def _masked_mean(weights: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """A mean over what is not padding, as people write it: 0 / 0 where all is."""
    return ((batch["x"] @ weights) ** 2 * batch["kept"]).sum() / batch["kept"].sum()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12).filter(any), st.integers(1, 12))
def test_a_micro_batch_that_counts_nothing_is_passed_over(kept: list[bool], largest: int) -> None:
    """With any samples padded, whole micro-batches of them too, the gradient is finite and the whole batch's."""
    torch.manual_seed(7)
    batch = {"x": torch.randn(len(kept), 2, dtype=torch.float64), "kept": torch.tensor(kept, dtype=torch.float64)}
    whole, found = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    _masked_mean(whole, batch).backward()  # type: ignore[no-untyped-call]

    steps = accumulate(batch, plan_accumulation(len(kept), largest), count=lambda part: part["kept"].sum())
    boundaries = []
    for part, is_boundary in steps:
        boundaries.append(is_boundary)
        steps.backward(_masked_mean(found, part))

    torch.testing.assert_close(found.grad, whole.grad, rtol=1e-6, atol=1e-12)
    assert boundaries == [False] * (len(steps) - 1) + [True]
