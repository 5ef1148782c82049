"""A trial that spends its time beside training says in what, how to shorten it, and that it still runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from oomdoctor.command import trial
from oomdoctor.command.outcome import classify_trial
from oomdoctor.command.trial import EndedTrial, SocketDirectory, TrialStart, run_trial
from oomdoctor.command.trial_events import EVALUATING, LOADING, STARTING, TRAINING, TrialEvents

TORCH = {"protocol": 1, "event": "started", "pid": 1, "rank": 0, "world_size": 1, "python": "3", "torch": "2"}


def _timed_out(*spent: tuple[str, float]) -> tuple[str, str]:
    """The error and the hint of a trial that met its time limit after these stages, each with its seconds."""
    events = TrialEvents()
    events.add({**TORCH, "cuda": None})
    moment = time.monotonic() - sum(seconds for _, seconds in spent)
    events.stages = []
    for stage, seconds in spent:
        events.stages.append((stage, moment))
        moment += seconds
    problem = classify_trial(EndedTrial(events, None, True, 60.0, None), 8, 1 << 30, 3).problem  # noqa: FBT003
    assert problem is not None
    return problem.message, problem.hint or ""


@pytest.mark.parametrize(
    ("stage", "says", "advice"),
    [
        (STARTING, "50 s of them before it imported torch", "start the training script itself"),
        (LOADING, "50 s of them before its first batch of training", "fewer samples"),
        (EVALUATING, "50 s of them in an evaluation", "skip the evaluation"),
    ],
)
def test_a_time_limit_names_what_took_the_time(stage: str, says: str, advice: str) -> None:
    """Start-up, loading and evaluation are told apart, each with what makes it shorter."""
    message, hint = _timed_out((stage, 50.0), (TRAINING, 10.0))

    assert message == f"the command took 0 of 3 optimizer steps in 60 s, {says}"
    assert advice in hint
    assert "`--trial-timeout`" in hint


def test_slow_training_is_told_as_before() -> None:
    """Where training itself takes the time, nothing else is to blame."""
    message, hint = _timed_out((LOADING, 20.0), (TRAINING, 40.0))

    assert message == "the command took 0 of 3 optimizer steps in 60 s"
    assert "`--steps 2`" in hint


def test_messages_lead_from_one_stage_to_the_next() -> None:
    """Torch, a batch of an evaluation, one of training and a step each say where the command is."""
    events = TrialEvents()
    batch = {"protocol": 1, "event": "batch", "pid": 1, "shapes": [[4]]}
    seen = []
    for message in (
        {**TORCH, "cuda": None},
        {"protocol": 1, "event": "evaluation", "pid": 1, "begins": True},
        {**batch, "training": False},
        {"protocol": 1, "event": "evaluation", "pid": 1, "begins": False},
        {**batch, "training": True},
        {"protocol": 1, "event": "step", "pid": 1, "steps": 1},
    ):
        events.add(message)
        seen.append(events.stages[-1][0])

    assert seen == [LOADING, EVALUATING, EVALUATING, TRAINING, TRAINING, TRAINING]


def test_a_trial_that_takes_long_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat comes while the command still runs, and its time grows."""
    monkeypatch.setattr(trial, "_HEARTBEAT_SECONDS", 0.1)
    sockets = SocketDirectory()
    beats: list[float] = []
    words = [sys.executable, "-S", "-c", "import time; time.sleep(1)"]
    try:
        start = TrialStart(words, tmp_path, {}, sockets.path, "trial", timeout_seconds=30.0)
        ended = run_trial(start, TrialEvents(), heartbeat=beats.append)
    finally:
        sockets.close()

    assert ended.return_code == 0
    assert len(beats) >= 3
    assert beats == sorted(beats)
