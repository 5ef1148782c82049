"""Where values lie along the edge of a plot, and which of them have a label."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.report.charts.scales import SCALE, Scale, round_counts, round_sizes, size_label, sizes

MIB = 1024**2
GIB = 1024**3
values = st.integers(-10, 2**64)
linear = st.tuples(st.integers(0, 2**62), st.integers(1, 2**62)).map(lambda ends: Scale(ends[0], ends[0] + ends[1]))
logarithmic = st.tuples(st.floats(0.5, 1e9), st.floats(1.01, 1e9)).map(
    lambda ends: Scale(ends[0], ends[0] * ends[1], is_log=True)
)


@given(linear | logarithmic, values, values)
def test_larger_values_lie_further(scale: Scale, one: int, other: int) -> None:
    """A scale never turns back, and nothing leaves the plot."""
    smaller, larger = sorted((one, other))
    assert 0 <= scale.at(smaller) <= scale.at(larger) <= SCALE
    assert scale.below_top(larger) == pytest.approx(SCALE - scale.at(larger))


@given(linear | logarithmic)
def test_ends_are_the_edges(scale: Scale) -> None:
    """The lowest value lies at the beginning and the highest at the end."""
    assert (scale.at(scale.low), scale.at(scale.high)) == (0, SCALE)


def test_equal_factors_are_equal_steps() -> None:
    """On a logarithmic scale each doubling is as far as the one before."""
    scale = Scale(1, 1024, is_log=True)
    places = [scale.at(2**power) for power in range(11)]
    assert {round(after - before, 1) for before, after in itertools.pairwise(places)} == {100.0}


@given(st.integers(0, 2**63))
def test_levels_are_few_round_and_inside(highest: int) -> None:
    """There are at most six levels, at equal distances that are a power of two."""
    scale = sizes(highest)
    levels = round_sizes(scale)
    assert len(levels) <= 6
    assert all(0 < level < scale.high for level in levels)
    for number, level in enumerate(levels, start=1):
        assert level == number * levels[0]
        assert levels[0] & (levels[0] - 1) == 0


@given(linear.filter(lambda scale: scale.high - scale.low >= 1) | logarithmic)
def test_counts_are_few_rising_and_inside(scale: Scale) -> None:
    """There are at most ten labelled counts, all of them whole numbers of the scale, in order."""
    counts = round_counts(scale)
    assert len(counts) <= 10
    assert counts == sorted(set(counts))
    assert all(max(1, scale.low) <= count <= scale.high for count in counts)


def test_counts_people_expect() -> None:
    """Twenty micro-batches are labelled by fives, a thousand doublings by powers of two."""
    assert round_counts(Scale(0, 21.6)) == [5, 10, 15, 20]
    assert round_counts(Scale(0, 1.08)) == [1]
    assert round_counts(Scale(0.8, 1331, is_log=True)) == [1, 4, 16, 64, 256, 1024]


def test_round_sizes_are_short() -> None:
    """A round size has no decimals, another one keeps them."""
    assert [size_label(size) for size in (8 * GIB, 512 * MIB, GIB * 3 // 2)] == ["8 GiB", "512 MiB", "1.50 GiB"]
