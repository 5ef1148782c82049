"""Where a size that fits has no room while its memory is recorded, the answer does not say that it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.choice import Engine
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome, StepMemory, Trial
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.profile_runner import ProfileRunner
from oomdoctor.trial.worker_answers import ProfileOutcome


class _OnlyLarger(ProfileRunner):
    """Records on a larger card alone."""

    def _ask(self, *_: object) -> ProfileOutcome:
        return ProfileOutcome(None, "out of memory", Outcome.OOM)

    def _on_larger_card(self, *_: object) -> ProfileOutcome:
        return ProfileOutcome(cast("StepMemory", object()), None, Outcome.FITS)


class _Again:
    """Runs what was run once more, with a peak."""

    def __init__(self, peak_bytes: int) -> None:
        self._peak_bytes = peak_bytes

    def run(self, size: int, **_: int) -> Trial:
        return Trial(size, Outcome.FITS, 1 << 30, self._peak_bytes, 1 << 30)


@pytest.mark.parametrize(
    ("asked", "peak_bytes", "says"),
    [
        (None, 1 << 30, "78 just fits, and not while it is recorded"),
        (None, 1 << 29, "78 fitted in one trial and ran out of memory in another"),
        (80, 1 << 30, "80 does not fit"),
    ],
)
def test_the_warning_says_whether_the_size_fits(asked: int | None, peak_bytes: int, says: str) -> None:
    """The largest size, which a trial ran, is not called one that does not fit, nor one that always does."""
    request = ProbeRequest(target="model.py", directory=Path(), target_batch=None, profile_micro_batch=asked)
    engine = Engine("null", find_card("t4"), {}, ())
    trials = (Trial(78, Outcome.FITS, 1 << 30, 1 << 30, 1 << 30),)
    source = cast("WorkerTrialSource", _Again(peak_bytes))

    answer = _OnlyLarger(request, engine, source, trials, None, SilentProgress()).record(78)

    assert f"micro-batch {says}" in answer.warnings[0]
