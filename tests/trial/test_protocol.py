"""Both sides of the pipe speak one typed protocol of one version."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from oomdoctor.agent.messages import UnknownRead
from oomdoctor.errors import NoAnswerError
from oomdoctor.results import Axis, Outcome, Trial, Variant
from oomdoctor.search.trial_source import TrialProblem
from oomdoctor.target.reference import Reference
from oomdoctor.trial import protocol
from oomdoctor.trial.process import WorkerChannel
from oomdoctor.trial.protocol import (
    AskDevice,
    FitCard,
    LoadTarget,
    ProfileTrial,
    ReplayTrials,
    RunTrial,
    TrialAllocations,
    answer_type,
    receive_answer,
    receive_question,
    send,
)
from oomdoctor.trial.worker_answers import Bug, DeviceCard, Died, Failed, HeldMemory, PredictedMax, TrialDone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.trial.protocol import AnyAnswer, AnyQuestion

PROBLEM = TrialProblem.of(NoAnswerError("no", hint="why not", details="a\nb"))
QUESTIONS = [
    AskDevice(),
    LoadTarget(Reference("m.py", "/", "m.py", path="/m.py"), Variant(axes=(Axis("n", 2),)), None, watched=True),
    RunTrial(1, 2, 3),
    ReplayTrials((TrialAllocations(2, "AAAA"),), 0, 9, 2**40, retries=False),
    ProfileTrial(RunTrial(1, 2, 3), None),
    FitCard("t4", 0.05, None),
]
ANSWERS = [
    PredictedMax(None),
    TrialDone(
        Trial(1, Outcome.OOM, 3),
        PROBLEM,
        "",
        loss_is_finite=True,
        zeros_read=0,
        unknown_reads=(UnknownRead("model.py:3", "x.item()", "value"),),
        optimizer="AdamW",
        held=HeldMemory(0, 1),
        capacity_bytes=5,
        unknown_calls=("cuFoo",),
    ),
    Failed(PROBLEM),
    Bug("Traceback"),
]


@pytest.fixture
def channel() -> Iterator[WorkerChannel]:
    """A channel that reads what it sends."""
    read, write = os.pipe()
    channel = WorkerChannel(read, write)
    yield channel
    channel.close()


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
def test_questions_arrive_as_they_were_asked(channel: WorkerChannel, question: AnyQuestion) -> None:
    """Each field has its type on the other side."""
    send(channel, question)
    assert receive_question(channel) == question


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_arrive_as_they_were_given(channel: WorkerChannel, answer: AnyAnswer) -> None:
    """Each field has its type on the other side."""
    send(channel, answer)
    assert receive_answer(channel, 1) == answer


def test_a_question_knows_its_answer() -> None:
    """The type that the type checker goes by is the one that is read."""
    assert answer_type(AskDevice()) is DeviceCard
    assert answer_type(RunTrial(1, 1, 1)) is TrialDone


def test_what_the_guardian_reports_is_an_answer(channel: WorkerChannel) -> None:
    """It imports nothing of the package, and writes its line by hand."""
    channel.send({"event": "died", "return_code": -9})
    assert receive_answer(channel, 1) == Died(-9)


def test_another_version_is_refused(channel: WorkerChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another release is not believed."""
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "PROTOCOL_VERSION", 2)
        send(channel, RunTrial(1, 1, 1))
    with pytest.raises(RuntimeError, match="not a message of version 1"):
        receive_question(channel)


def test_an_answer_is_no_question(channel: WorkerChannel) -> None:
    """Each side reads only what the other may say."""
    send(channel, PredictedMax(3))
    with pytest.raises(RuntimeError, match="not a message"):
        receive_question(channel)


def test_a_problem_is_the_error_again() -> None:
    """Its class, its message, its hint and its details."""
    error = PROBLEM.error()
    assert (type(error), error.message, error.hint, error.details) == (NoAnswerError, "no", "why not", "a\nb")
