"""Random draws replaced by what they are expected to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout

from oomdoctor.verification.expected_randomness import ExpectedRandomness

ROW = torch.arange(6.0)
DRAWS: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
    "rand": (lambda: torch.rand(6), torch.full((6,), 0.5)),
    "rand_like": (lambda: torch.rand_like(ROW), torch.full((6,), 0.5)),
    "uniform_": (lambda: torch.empty(6).uniform_(2, 4), torch.full((6,), 3.0)),
    "randn": (lambda: torch.randn(6), torch.zeros(6)),
    "randn_like": (lambda: torch.randn_like(ROW), torch.zeros(6)),
    "normal_": (lambda: torch.empty(6).normal_(2, 1), torch.full((6,), 2.0)),
    "normal": (lambda: torch.normal(ROW, torch.ones(6)), ROW),
    "randint": (lambda: torch.randint(4, 8, (6,)), torch.full((6,), 6)),
    "random_": (lambda: torch.empty(6).random_(2, 6), torch.full((6,), 4.0)),
    "exponential_": (lambda: torch.empty(6).exponential_(2.0), torch.full((6,), 0.5)),
    "bernoulli": (lambda: torch.bernoulli(ROW / 6), ROW / 6),
    "bernoulli_": (lambda: torch.empty(6).bernoulli_(0.8), torch.full((6,), 0.8)),
    "bernoulli_ of a tensor": (lambda: torch.empty(6).bernoulli_(ROW / 6), ROW / 6),
    "randperm": (lambda: torch.randperm(6), torch.tensor([5, 0, 1, 2, 3, 4])),
    "dropout": (lambda: dropout(ROW, 0.3), ROW),
    "multinomial": (lambda: torch.multinomial(torch.tensor([1.0, 3.0, 2.0]), 2), torch.tensor([1, 2])),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_draw_has_its_expected_value(name: str) -> None:
    """Every random operator gives its expected value, twice the same; a permutation moves every sample."""
    draw, expected = DRAWS[name]
    for _ in range(2):
        with ExpectedRandomness() as mode:
            drawn = draw()
        torch.testing.assert_close(drawn, expected)
        assert len(mode.drawn) == 1
