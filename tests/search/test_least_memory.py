"""The least memory of a size is bisected where workspaces are optional, and every figure of it was run."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.results import Outcome, Trial
from oomdoctor.search.memory_at_maximum import find_least_memory


def _trial(outcome: Outcome, allowed_bytes: int, workspace_bytes: int) -> Trial:
    return Trial(8, outcome, allowed_bytes, 900, 1000, workspace_bytes=workspace_bytes)


def test_least_memory_is_bisected_and_tested() -> None:
    """Trials halve what is unknown, from the peak down to what no workspace is part of."""
    asked: list[int] = []

    def run(allowed_bytes: int) -> Trial:
        asked.append(allowed_bytes)
        return _trial(Outcome.FITS if allowed_bytes >= 730 else Outcome.OOM, allowed_bytes, 100)

    found = find_least_memory([_trial(Outcome.FITS, 2000, 400)], 8, run)
    assert found is not None
    assert asked == [750, 625, 687]  # from 500 to 1000
    assert (found.peak_reserved_bytes, found.least_bytes, found.ran_out_bytes) == (1000, 750, 687)
    assert found.trials == len(asked)


def test_nothing_is_run_where_workspaces_are_small() -> None:
    """A workspace of at most 2 % of the peak is worth no trial, and a model without one neither."""

    def run(allowed_bytes: int) -> Trial:
        raise AssertionError(allowed_bytes)

    for workspace_bytes in (0, 20):  # of 1000
        assert find_least_memory([_trial(Outcome.FITS, 2000, workspace_bytes)], 8, run) is None


def test_a_size_that_runs_in_no_less_keeps_its_peak() -> None:
    """Where every smaller memory runs out, the peak is the least, and the largest that ran out is named."""
    found = find_least_memory([_trial(Outcome.FITS, 2000, 400)], 8, lambda allowed: _trial(Outcome.OOM, allowed, 0))
    assert found is not None
    assert (found.least_bytes, found.ran_out_bytes) == (1000, 937)


def test_few_trials_where_little_is_optional() -> None:
    """Of a size that could do with a tenth less, half of that is looked for."""
    sized = replace(_trial(Outcome.FITS, 2000, 50), peak_allocated_bytes=950)
    found = find_least_memory([sized], 8, lambda allowed: _trial(Outcome.FITS, allowed, 0))
    assert found is not None
    assert (found.trials, found.least_bytes, found.ran_out_bytes) == (1, 950, None)
