"""A search that is ended from outside says what it has proven until then."""

from __future__ import annotations

import pytest

from oomdoctor.errors import NoAnswerError
from oomdoctor.progress import SilentProgress
from oomdoctor.results import Outcome, Trial
from oomdoctor.search.probe_search import ProbeSearch
from oomdoctor.search.trial_source import TrialNotes, TrialProblem

LARGEST = 100
CAPACITY_BYTES = 1 << 30


class EndedSource:
    """Trials that fit up to a size, and of which one is ended from outside.

    Args:
        end: Raised by it; None where the trial fails for another reason than memory.
        after: Trials before it.
    """

    capacity_bytes = CAPACITY_BYTES

    def __init__(self, end: BaseException | None, after: int) -> None:
        self._end = end
        self._left = after
        self.notes = TrialNotes()

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:  # noqa: ARG002 - as asked
        """Run one trial."""
        outcome = Outcome.FITS if micro_batch <= LARGEST else Outcome.OOM
        self._left -= 1
        if self._left < 0:
            if self._end is not None:
                raise self._end
            self.notes.problem = TrialProblem.of(NoAnswerError("it took too long"))
            outcome = Outcome.FAILED
        return Trial(micro_batch, outcome, allowed_bytes, 0, 0, seconds=1.0)

    def predict_max(self, low: int, high: int, *, allowed_bytes: int, retries: bool) -> int | None:  # noqa: ARG002 - as asked
        """Predict nothing."""
        return None


def _notes(end: BaseException | None, after: int) -> list[str]:
    search = ProbeSearch(EndedSource(end, after), SilentProgress(), 1000)
    with pytest.raises((KeyboardInterrupt, NoAnswerError)) as caught:
        search.find_maximum(0)
    return list(getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize("end", [KeyboardInterrupt(), NoAnswerError("it took too long"), None])
def test_the_end_carries_the_bracket(end: BaseException | None) -> None:
    """An interrupt, a time limit and a trial that had no answer have a note with both sides of the bracket."""
    (note,) = _notes(end, 7)

    low, high = (int(word) for word in note.split() if word.isdigit())
    assert note == f"proven so far: micro-batch {low} fits, and {high} does not fit"
    assert 1 <= low <= LARGEST < high


def test_one_side_is_told_alone() -> None:
    """Where only sizes that fit were run, nothing is said of others; before the first trial nothing at all."""
    assert _notes(KeyboardInterrupt(), 1) == ["proven so far: micro-batch 4 fits"]
    assert _notes(KeyboardInterrupt(), 0) == []


def test_a_trial_that_failed_proves_nothing() -> None:
    """What failed for another reason than memory, and at the first size, is not called a size that does not fit."""
    assert _notes(None, 0) == []


class GrowingSource(EndedSource):
    """Trials whose peak is a MiB a sample, on whatever card."""

    def __init__(self) -> None:
        super().__init__(None, 1 << 30)
        self.sizes: list[int] = []

    def run(self, micro_batch: int, *, micro_steps: int, allowed_bytes: int) -> Trial:  # noqa: ARG002 - as asked
        """Run one trial."""
        self.sizes.append(micro_batch)
        needed = micro_batch << 20
        outcome = Outcome.FITS if needed <= allowed_bytes else Outcome.OOM
        return Trial(micro_batch, outcome, allowed_bytes, min(needed, allowed_bytes), 0, seconds=1.0)


def test_a_trial_that_ran_out_does_not_tell_how_memory_grows() -> None:
    """The target is not tried as if all sizes took the same where a smaller card ran out at the maximum before."""
    source = GrowingSource()
    search = ProbeSearch(source, SilentProgress(), 1 << 20)
    search.trials = [Trial(1024, Outcome.OOM, 1 << 19, 1 << 19, 0, seconds=1.0)]

    assert search.find_maximum(0).maximum == 1024
    assert max(source.sizes) < 1 << 20
