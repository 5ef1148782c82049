"""A search that begins at a guess: two trials where it is right, and hardly more than without where it is wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import CAPACITY, GIB, MIB, Oracle, assert_proven

if TYPE_CHECKING:
    from oomdoctor.search.bracket import PredictMax

_GUESSES = 2
"""Different guesses that are heard."""


def predicting(oracle: Oracle, maximum: int) -> PredictMax:
    """Foresight as a replay has it: right, once there are two sizes that fit."""

    def predict_max(low: int, high: int) -> int | None:
        fits = [size for size in set(oracle.asked) if oracle.need(size) <= oracle.capacity]
        return min(max(maximum, low), high - 1) if len(fits) > 1 else None

    return predict_max


@given(largest=st.sampled_from([64, 4096]), slope=st.integers(MIB, 30 * GIB), fixed=st.integers(0, CAPACITY))
def test_a_right_guess_is_proven_by_two_trials(largest: int, slope: int, fixed: int) -> None:
    """The guess and its successor are all that is run; one of them alone where nothing fits, or all does."""
    oracle = Oracle(lambda size: fixed + slope * size, fixed=fixed)
    maximum = min(largest, (CAPACITY - fixed) // slope)

    result = oracle.find(largest, guess=lambda: maximum, predict_max=lambda _low, _high: None)

    assert result.maximum == maximum
    assert oracle.asked == [size for size in (maximum, maximum + 1) if 1 <= size <= largest]


def test_a_guess_above_what_is_searched_begins_at_its_end() -> None:
    """Where the guess is that more than the largest size fits, that one is run, and nothing else."""
    oracle = Oracle(lambda size: GIB + size * MIB, fixed=GIB)
    assert oracle.find(4096, guess=lambda: 10**6).maximum == 4096
    assert oracle.asked == [4096]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.99, 1.01, 1.1, 2, 20])
@pytest.mark.parametrize("slope", [4 * MIB, 47 * MIB, 300 * MIB, 1400 * MIB])
def test_a_wrong_guess_costs_one_trial_at_most(slope: int, share: float) -> None:
    """However far it is off, the search takes no more than one trial more than it takes without."""
    plain, guided = (Oracle(lambda size: 2 * GIB + slope * size) for _ in range(2))
    maximum = 22 * GIB // slope
    guess = round(maximum * share)

    without = plain.find(4096, predict_max=predicting(plain, maximum))
    result = guided.find(4096, predict_max=predicting(guided, maximum), guess=lambda: guess)

    assert result.maximum == without.maximum == min(maximum, 4096)
    assert len(guided.asked) <= len(plain.asked) + 1


def test_guesses_that_never_end_are_not_heard_for_ever() -> None:
    """One that says something else each time, and is never refuted, does not lead the search sample by sample."""
    plain, guided = (Oracle(lambda size: 2 * GIB + 47 * MIB * size) for _ in range(2))

    plain.find(4096, predict_max=predicting(plain, 479))
    result = guided.find(4096, predict_max=predicting(guided, 479), guess=lambda: len(guided.asked) + 1)

    assert result.maximum == 479
    assert len(guided.asked) <= len(plain.asked) + _GUESSES


def test_a_second_guess_is_heard_where_the_capacity_has_changed() -> None:
    """The guess is asked for again before each trial; what has been refuted is not tried again."""
    oracle = Oracle(lambda size: 2 * GIB + size * GIB)
    guesses = iter([24, 22, 22, 22])

    result = oracle.find(4096, guess=lambda: next(guesses))

    assert (result.maximum, oracle.asked) == (22, [24, 22, 23])


@given(threshold=st.integers(0, 4096), seed=st.integers())
def test_whatever_is_guessed_the_maximum_is_exact(threshold: int, seed: int) -> None:
    """Guesses and foresight that mean nothing cost trials, and neither the maximum nor the bound."""
    chance = random.Random(seed)
    oracle = Oracle(lambda size: 0 if size <= threshold else CAPACITY + 1)

    result = oracle.find(
        4096,
        guess=lambda: chance.choice([None, threshold, chance.randint(0, 5000)]),
        predict_max=lambda low, high: chance.choice([None, low, high - 1, chance.randint(low, high)]),
    )

    assert_proven(result, oracle, 4096, foresight=6 + 2 * _GUESSES)
    assert result.maximum == threshold


@pytest.mark.parametrize("maximum", [10752, 6144, 20000, 33333])
def test_a_replay_that_was_wrong_is_asked_again_after_a_nearer_fit(maximum: int) -> None:
    """Memory that bends above a size is foretold wrong from below it, and right once a trial above it has fitted."""
    bend = 4096
    oracle = Oracle(lambda size: size * MIB + max(0, size - bend) * MIB, capacity=(2 * maximum - bend) * MIB)

    def predict_max(low: int, high: int) -> int | None:
        known = maximum if low > bend else 2 * maximum - bend
        return min(max(known, low), high - 1)

    result = oracle.find(50_000, predict_max=predict_max)

    assert result.maximum == maximum
    assert len(oracle.asked) <= 10
