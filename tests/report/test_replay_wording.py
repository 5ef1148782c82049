"""What reports say of a history that was held to the allocator's rules."""

from __future__ import annotations

from diagnosis_documents import snapshot

from oomdoctor.report.diagnose.sentences import history
from oomdoctor.results import HistoryReplay


def test_a_history_that_replays() -> None:
    """One clause says that it does."""
    found = snapshot(truncated=False, replay=HistoryReplay(3060, 16, None, None))
    assert history(found) == ("its history has 4440 events; the simulated allocator reproduces each block and segment")


def test_a_history_that_departs() -> None:
    """The event is counted from 1, and what is there is said."""
    found = snapshot(
        truncated=False, replay=HistoryReplay(7, 3, 11, "by the allocator's rules A, and the history has B")
    )
    assert history(found) == (
        "its history has 4440 events; the simulated allocator differs from it at event 12: "
        "by the allocator's rules A, and the history has B"
    )


def test_a_history_that_was_not_held_to_them() -> None:
    """Nothing is said."""
    assert history(snapshot(truncated=False)) == "its history has 4440 events"
