"""The search for the fastest micro-batch, on curves of throughput with plateaus, peaks, drift and noise."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from oomdoctor.search.probe_search import plan_accumulation
from oomdoctor.search.throughput import TIMED_STEPS, WARM_STEPS, MicroBatches, ThroughputSearch

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET, LARGEST, RECOMMENDED = 2048, 384, 360

CURVES: dict[str, Callable[[int], float]] = {
    "a plateau": lambda size: size / (size + 8),
    "rising to the end": lambda size: size / (size + 200),
    "a peak": lambda size: math.exp(-(math.log(size / 40) ** 2) / 2),
    "a cliff where memory is full": lambda size: size / (size + 50) * (0.57 if size > 256 else 1),
    "the same everywhere": lambda _: 1.0,
    "tiles of eight": lambda size: size / (size + 20) * (1.0 if size % 8 == 0 else 0.93),
    "falling": lambda size: size**-0.3,
    "a narrow peak at three": lambda size: 0.6 + 0.4 * math.exp(-2 * math.log(size / 3) ** 2),
    "a cliff between powers of two": lambda size: size / (size + 30) * (0.5 if size > 200 else 1),
}
"""Samples in a second by micro-batch, in any unit."""


def limited(size: int) -> MicroBatches:
    """Return the step with sizes of at most so many samples."""
    return plan_accumulation(TARGET, size).micro_batches


class Card:
    """A card whose optimizer steps follow a curve, with noise, drift and a disturbance now and then."""

    def __init__(self, curve: Callable[[int], float], seed: int, *, noise: float = 0.0, drift: float = 0.0) -> None:
        self.curve, self.noise, self.drift = curve, noise, drift
        self.random = random.Random(seed)
        self.visits = 0

    def throughput(self, step: MicroBatches) -> float:
        """Return samples a second without noise."""
        return sum(step) / sum(size / self.curve(size) for size in step)

    def time(self, step: MicroBatches) -> float:
        """Return seconds, the middle ones of several steps."""
        self.visits += 1
        plain = sum(step) / self.throughput(step) * math.exp(self.drift * self.visits / 100)
        times = [plain * math.exp(self.random.gauss(0, self.noise)) for _ in range(TIMED_STEPS)]
        if self.noise and self.random.random() < 0.06:
            times[0] *= 1.5
        return sorted(times)[1]

    def loss(self, step: MicroBatches) -> float:
        """By how much a step is slower than the best of all sizes."""
        return 1 - self.throughput(step) / max(self.throughput(limited(size)) for size in range(1, LARGEST + 1))


@pytest.mark.parametrize(("noise", "drift"), [(0.0, 0.0), (0.005, 0.0), (0.01, 0.1), (0.02, -0.15), (0.01, 0.25)])
@pytest.mark.parametrize("name", CURVES)
def test_what_is_found_is_within_3_percent_of_the_best(name: str, noise: float, drift: float) -> None:
    """On every curve the answer is at most 3 % slower than the best size, after at most 700 optimizer steps."""
    for seed in range(20):
        card = Card(CURVES[name], seed, noise=noise, drift=drift)
        found = ThroughputSearch(limited(LARGEST), limited, card.time).find([RECOMMENDED])
        assert found is not None
        assert card.loss(found) <= 0.03, f"seed {seed}"
        assert card.visits * (WARM_STEPS + TIMED_STEPS) <= 700, f"seed {seed}"


def test_ties_go_to_the_smaller_size() -> None:
    """Where all sizes are as fast, the smallest that was compared is the answer."""
    card = Card(CURVES["the same everywhere"], 0)
    search = ThroughputSearch(limited(LARGEST), limited, card.time)
    assert search.find() == min(search.timed, key=lambda step: step[0])
    assert search.is_settled


def test_sizes_that_are_clearly_slower_are_not_halved_further() -> None:
    """Two sizes below 80 % of the best end the way down."""
    card = Card(CURVES["rising to the end"], 0)
    search = ThroughputSearch(limited(LARGEST), limited, card.time)
    assert search.find() == limited(LARGEST)
    assert min(step[0] for step in search.timed) >= 64


def test_a_size_that_runs_out_while_it_is_timed_is_left_out() -> None:
    """The largest size runs out of memory, and the answer is among the others."""
    card = Card(CURVES["rising to the end"], 0)

    def time(step: MicroBatches) -> float | None:
        return None if step[0] > RECOMMENDED - 60 else card.time(step)

    search = ThroughputSearch(limited(LARGEST), limited, time)
    found = search.find([RECOMMENDED])
    assert found is not None
    assert found[0] <= RECOMMENDED - 60
    assert limited(LARGEST) in search.ran_out
    assert search.ran_out.count(limited(LARGEST)) == 1


def test_nothing_is_found_where_every_size_runs_out() -> None:
    """Where no step can be timed there is no answer."""
    search = ThroughputSearch(limited(LARGEST), limited, lambda _: None)
    assert search.find() is None
    assert search.timed == []


def test_scattered_times_are_called_so() -> None:
    """Where times scatter by a quarter, the search ends all the same and says that it is not settled."""
    card = Card(CURVES["the same everywhere"], 3, noise=0.25)
    search = ThroughputSearch(limited(LARGEST), limited, card.time)
    search.find()
    assert not search.is_settled
