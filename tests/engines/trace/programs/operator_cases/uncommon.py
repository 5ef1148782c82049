"""Uncommon uses of common operators: of vectors and of nothing, masks that are broadcast, conjugates, and others."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it
from torch import fft

from operator_cases.making import HALF, Case, case, given, leaf, places, zeros

_COMPLEX = torch.complex64


def _without_biases(name: str, gates: int, *, both_ways: bool) -> Case:
    """Two layers of a recurrent network, whose weights are in no buffer yet."""
    directions = 1 + both_ways
    shapes = [(gates * 24, columns) for _ in range(directions) for columns in (16, 24)]
    shapes += [(gates * 24, columns) for _ in range(directions) for columns in (24 * directions, 24)]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        state = zeros(2 * directions, 5, 24)
        hidden = [state, zeros(2 * directions, 5, 24)] if name == "lstm" else state
        settings = (False, 2, 0.0, True, both_ways, False)  # biases, layers, dropout, training, directions, batch first
        output: torch.Tensor = getattr(torch, name)(x, hidden, list(weights), *settings)[0]
        return output

    return case(run, leaf(30, 5, 16), *(leaf(*shape) for shape in shapes))


def _row_of(count: int) -> torch.Tensor:
    return places(count) < 0


_SUMMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var_mean": lambda x: torch.add(*torch.var_mean(x, 1)),
    "std_mean": lambda x: torch.add(*torch.std_mean(x, 1)),
    "mvlgamma": lambda x: torch.mvlgamma(x, 2),
    "i1e": torch.special.i1e,
}
"""Operators whose gradient is a sum that their formula makes."""

_HALVES = (torch.float32, HALF)

CASES = {
    "linear of a vector": case(F.linear, leaf(800), leaf(600, 800), leaf(600)),
    "linear of no rows": case(F.linear, leaf(0, 800), leaf(600, 800), leaf(600)),
    "linear of complex numbers": case(
        F.linear, leaf(50, 80, dtype=_COMPLEX), leaf(60, 80, dtype=_COMPLEX), leaf(60, dtype=_COMPLEX)
    ),
    "product of complex numbers": case(torch.matmul, leaf(50, 80, dtype=_COMPLEX), leaf(80, 60, dtype=_COMPLEX)),
    **{
        f"sum of products and {name}, {dtype}": case(
            torch.addmm, leaf(*shape, dtype=dtype), leaf(50, 80, dtype=dtype), leaf(80, 60, dtype=dtype)
        )
        for dtype in _HALVES
        for name, shape in (("a row", (60,)), ("a matrix of one row", (1, 60)), ("a matrix", (50, 60)))
    },
    **{
        f"attention without heads, {dtype}": case(
            F.scaled_dot_product_attention, *(leaf(4, length, 32, dtype=dtype) for length in (30, 60, 60))
        )
        for dtype in _HALVES
    },
    **{
        f"{name} without biases{', both ways' if both_ways else ''}": _without_biases(name, gates, both_ways=both_ways)
        for name, gates in (("rnn_tanh", 1), ("lstm", 4), ("gru", 3))
        for both_ways in (False, True)
    },
    **{f"{name} of a formula with sums": case(function, leaf(300, 200)) for name, function in _SUMMED.items()},
    "atan2": case(torch.atan2, leaf(300, 200), leaf(300, 200)),
    "median of all": case(torch.median, leaf(300, 200)),
    "whether tensors are equal": case(lambda x, y: x * torch.equal(x, y), leaf(300, 200), given(300, 200)),
    "draws of half probabilities": case(torch.bernoulli, given(300, 200, dtype=HALF)),
    "mean of what is scattered": case(
        lambda x, y: x.scatter_reduce(0, places(200, 300) % 100, y, "mean"), leaf(100, 300), leaf(200, 300)
    ),
    "mean of what is scattered alone": case(
        lambda x, y: x.scatter_reduce(0, places(200, 300) % 100, y, "mean", include_self=False),
        leaf(100, 300),
        leaf(200, 300),
    ),
    "windows of a signal": case(lambda x: x.unfold(1, 40, 20), leaf(30, 2000)),
    "selected by a row": case(lambda x: x.masked_select(_row_of(200)), leaf(300, 200)),
    "put by a row": case(lambda x, y: x.masked_scatter(_row_of(200), y), leaf(300, 200), leaf(300, 200)),
    "rfft along 1": case(lambda x: fft.rfft(x, dim=1).abs(), leaf(20, 400, 30)),
    "irfft along 1": case(lambda x: fft.irfft(x, dim=1), leaf(20, 201, 30, dtype=_COMPLEX)),
    "fft along 1": case(lambda x: fft.fft(x, dim=1), leaf(20, 400, 30, dtype=_COMPLEX)),
    "fft of padded numbers": case(lambda x: fft.fft(x, n=600, dim=1).abs(), leaf(20, 400, 30)),
    "nothing chosen": case(lambda x: x[zeros(300, dtype=torch.bool)], leaf(300, 200)),
}
