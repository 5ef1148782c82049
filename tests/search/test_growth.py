"""Growth from step to step is told from what stays the same, and from what ends."""

from __future__ import annotations

import pytest

from oomdoctor.search.growth import growth_of, is_settled, last_step, outlasted


@pytest.mark.parametrize(
    ("ends", "goes_on", "iterations", "bytes_a_step"),
    [
        ([10, 10, 10, 10], False, 2, 0),  # nothing
        ([5, 10, 10, 10], False, 2, 0),  # a cache that the first step fills
        ([10, 20, 20, 20], False, 2, 0),  # one that the second finds
        ([10, 20, 30, 40, 40, 40], False, 5, 0),  # a queue of four
        ([10, 20, 30, 40, 50], True, 2, 10),  # a list
        ([10, 20, 15, 30, 25, 17], False, 2, 0),  # batches of different lengths
        ([10], False, 2, 0),
        ([], False, 2, 0),
    ],
)
def test_growth_is_judged_by_the_ends_of_steps(
    ends: list[int], goes_on: bool, iterations: int, bytes_a_step: int
) -> None:
    """A leak goes on, a queue ends and asks for as many steps as fill it and one more, and a cache is nothing."""
    found = growth_of(ends, 4, None, ran_out=False)
    assert (found.goes_on, found.iterations, found.bytes_a_step) == (goes_on, iterations, bytes_a_step)
    assert (found.warning() is None) == (not goes_on and iterations == 2)


def test_what_runs_out_while_it_grows_leaks() -> None:
    """No three steps that end alike are needed then."""
    assert growth_of([10, 20, 30], 4, None, ran_out=True).goes_on


def test_three_steps_that_end_alike_settle_it() -> None:
    """The first step is not among them."""
    assert is_settled([1, 5, 5, 5])
    assert not is_settled([5, 5, 5])
    assert not is_settled([5, 5, 6, 6])


def test_the_last_step_is_seen_or_reckoned() -> None:
    """Where the trial ran out it is the next one; else the room that is left tells."""
    assert last_step([10, 20, 30], 10, 0, ran_out=True) == 4
    assert last_step([10, 20, 30], 10, 25, ran_out=False) == 6
    assert last_step([10, 10], 0, 25, ran_out=False) is None


@pytest.mark.parametrize(("ran_out", "said"), [(False, "in step 6 at the latest"), (True, "in step 4; `kept`")])
def test_a_step_that_was_not_run_is_the_latest(ran_out: bool, said: str) -> None:
    """Free memory in pieces ends a leak before all is handed out, so only a step that ran out is named as the one."""
    leak = growth_of([10, 20, 30], 4, "`kept`", ran_out=True)
    assert said in str(outlasted(leak, [10, 20, 30], 4, 25, ran_out=ran_out).warning())
