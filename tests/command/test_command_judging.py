"""From what a trial's processes said to its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from command_messages import (
    CAPACITY,
    OOM_ERROR,
    OOM_TEXT,
    TAIL,
    Message,
    batch,
    classified,
    device,
    error,
    events,
    measured,
    oom,
    started,
    step,
)

from oomdoctor.agent.channel import PROTOCOL
from oomdoctor.command.notes import Observations
from oomdoctor.command.outcome import SWALLOWED, classify_trial
from oomdoctor.command.trial import EndedTrial
from oomdoctor.errors import NoAnswerError, OomdoctorError, TargetError
from oomdoctor.results import Outcome

_BEGUN = (started(), device(), batch([8, 512, 256]))


@dataclass(frozen=True)
class Case:
    """One way in which a trial ends.

    Attributes:
        name: What happens.
        messages: What its processes say.
        outcome: What it is taken for.
        says: What its error must hold.
        kind: The error's class, where it is no OOM.
        hint: What the error's hint must hold.
        how: How the command itself ended.
    """

    name: str
    messages: tuple[Message, ...]
    outcome: Outcome
    says: str = ""
    kind: type[OomdoctorError] | None = None
    hint: str = ""
    how: dict[str, Any] = field(default_factory=dict)


_CASES = [
    Case("all steps", (*_BEGUN, step(1), step(2), step(3), measured("steps", 3)), Outcome.FITS),
    Case("a good end after fewer steps", (*_BEGUN, measured("exit", 2)), Outcome.FITS, how={"return_code": 0}),
    Case("a good end after one step", (*_BEGUN, measured("exit", 1)), Outcome.FITS, how={"return_code": 0}),
    Case("too slow for the last step", (*_BEGUN, step(1), step(2)), Outcome.FITS, how={"timed_out": True}),
    Case(
        "a failure after a read that decides",
        (
            *_BEGUN,
            measured(
                "error",
                0,
                error=error("bad shape", "IndexError"),
                unknown_reads=[{"place": "train.py:7", "text": "kept.any()", "effect": "decision"}],
            ),
        ),
        Outcome.FAILED,
        "read data back from the GPU (`kept.any()` at train.py:7 (a condition)) and then failed: bad shape",
        NoAnswerError,
        "with a CUDA GPU",
    ),
    Case(
        "a missing library after a read that decides",
        (
            *_BEGUN,
            measured(
                "error",
                0,
                error=error("bad shape", "ModuleNotFoundError", "ImportError"),
                unknown_reads=[{"place": "train.py:7", "text": "kept.any()", "effect": "decision"}],
            ),
        ),
        Outcome.FAILED,
        "bad shape",
        TargetError,
    ),
    Case(
        "a failure after a read that is logged",
        (
            *_BEGUN,
            measured(
                "error",
                1,
                error=error("bad shape", "IndexError"),
                unknown_reads=[{"place": "train.py:9", "text": "loss.item()", "effect": "value"}],
            ),
        ),
        Outcome.FAILED,
        "bad shape",
        TargetError,
    ),
    Case(
        "too slow for the second step",
        (*_BEGUN, step(1)),
        Outcome.FAILED,
        "the command took 1 of 3 optimizer steps in 12 s",
        NoAnswerError,
        "`--trial-timeout`",
        how={"timed_out": True},
    ),
    Case(
        "too slow for the first step",
        _BEGUN,
        Outcome.FAILED,
        "took 0 of 3 optimizer steps",
        NoAnswerError,
        "`--trial-timeout`",
        how={"timed_out": True},
    ),
    Case(
        "too slow for torch",
        (),
        Outcome.FAILED,
        "never imported torch before its time was up",
        NoAnswerError,
        "`--trial-timeout`",
        how={"timed_out": True},
    ),
    Case("an OOM that ends it", (*_BEGUN, oom(), measured("error", 0, ooms=1, error=OOM_ERROR)), Outcome.OOM, OOM_TEXT),
    Case("an OOM and then silence", (*_BEGUN, oom()), Outcome.OOM, "Tried to allocate 64.00 MiB; 1.00 MiB were free"),
    Case(
        "an OOM that only the allocator counted", (*_BEGUN, measured("exit", 0, ooms=2)), Outcome.OOM, "out of memory"
    ),
    Case("an OOM, and a status of its own", (*_BEGUN, oom()), Outcome.OOM, "out of memory", how={"return_code": 1}),
    Case("an OOM, and a good end", (*_BEGUN, oom(), measured("exit", 0, ooms=1)), Outcome.OOM, SWALLOWED),
    Case("an OOM, and a step", (*_BEGUN, oom(), step(1)), Outcome.OOM, SWALLOWED),
    Case(
        "an OOM, and another error",
        (*_BEGUN, oom(), measured("error", 0, ooms=1, error=error("no more sizes to try", "ValueError"))),
        Outcome.OOM,
        "no more sizes to try",
    ),
    Case(
        "an OOM of a process, whose child goes on",
        (*_BEGUN, oom(), started(2), step(1, pid=2)),
        Outcome.OOM,
        "1.00 MiB were free",
    ),
    Case(
        "an error",
        (*_BEGUN, measured("error", 0, error=error("bad shape", "ValueError"))),
        Outcome.FAILED,
        "bad shape",
        TargetError,
    ),
    Case(
        "an error after all that is needed",
        (*_BEGUN, measured("error", 2, error=error("bad shape", "ValueError"))),
        Outcome.FAILED,
        "bad shape",
        TargetError,
    ),
    Case(
        "a size limit",
        (*_BEGUN, measured("error", 0, error=error("integer out of range: canUse32BitIndexMath", "RuntimeError"))),
        Outcome.LIMIT,
        "32Bit",
    ),
    Case(
        "no step",
        (*_BEGUN, measured("exit", 0)),
        Outcome.FAILED,
        "never took an optimizer step",
        TargetError,
        "larger than its data",
        how={"return_code": 0},
    ),
    Case("nothing at all", (), Outcome.FAILED, "imported torch", TargetError, "PyTorch", how={"return_code": 0}),
    Case(
        "another framework",
        ({"protocol": PROTOCOL, "event": "no_torch", "pid": 7, "frameworks": ["tensorflow", "keras"]},),
        Outcome.FAILED,
        "no Python of the command imported torch; it imported tensorflow and keras",
        TargetError,
        how={"return_code": 0},
    ),
    Case(
        "steps on the CPU",
        (started(), measured("steps", 3, cuda=False, peak_allocated_bytes=0)),
        Outcome.FAILED,
        "trains on the CPU",
        TargetError,
        "`cuda`",
    ),
    Case(
        "steps on the CPU, though CUDA was initialised",
        (*_BEGUN, measured("steps", 3, peak_allocated_bytes=0)),
        Outcome.FAILED,
        "trains on the CPU",
        TargetError,
    ),
    Case(
        "a status before torch",
        (),
        Outcome.FAILED,
        "exit code 2 before its first optimizer step",
        TargetError,
        how={"return_code": 2},
    ),
    Case(
        "a status after a step",
        (*_BEGUN, step(1), measured("exit", 1)),
        Outcome.FAILED,
        "exit code 3 after 1 optimizer step",
        TargetError,
        how={"return_code": 3},
    ),
    Case("a signal", _BEGUN, Outcome.FAILED, "signal 11 before its first", TargetError, how={"return_code": -11}),
    Case(
        "both ranks do all steps",
        (
            *(started(pid, rank=pid, world_size=2) for pid in (1, 2)),
            *map(device, (1, 2)),
            *(measured("steps", 3, pid) for pid in (1, 2)),
        ),
        Outcome.FITS,
    ),
    Case(
        "one of two ranks runs out",
        (
            *(started(pid, rank=pid, world_size=2) for pid in (1, 2)),
            *map(device, (1, 2)),
            measured("steps", 3, 1),
            oom(2),
            measured("error", 0, 2, ooms=1, error=OOM_ERROR),
        ),
        Outcome.OOM,
        OOM_TEXT,
    ),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_each_end_has_its_outcome(case: Case) -> None:
    """What the processes said, and how the command ended, is told apart as a reader would."""
    found = classified(*case.messages, **case.how)

    assert found.trial.outcome is case.outcome
    assert (found.trial.micro_batch, found.trial.allowed_bytes, found.trial.seconds) == (8, CAPACITY, 12.0)
    assert case.says in (found.trial.error or "")
    assert (found.trial.error is None) == (case.outcome is Outcome.FITS)
    assert type(found.problem) is (case.kind or type(None))
    assert case.hint in (getattr(found.problem, "hint", None) or "")


@pytest.mark.parametrize("case", [case for case in _CASES if case.kind is TargetError], ids=lambda case: case.name)
def test_a_failure_comes_with_what_was_seen(case: Case) -> None:
    """Where the command is at fault, its traceback or the end of its output is shown."""
    problem = classified(*case.messages, **case.how).problem

    assert problem is not None
    assert problem.details in (TAIL, "Traceback (most recent call last):\nbad shape")


def test_only_what_its_own_code_went_on_after_is_swallowed() -> None:
    """OOMs are counted as swallowed where the process that met them trained on, and not where they ended it."""
    assert classified(*_BEGUN, oom(), oom(), step(1)).trial.swallowed_ooms == 2
    assert classified(*_BEGUN, oom(), measured("error", 0, ooms=1, error=OOM_ERROR)).trial.swallowed_ooms == 0


def test_an_oom_in_an_evaluation_is_told_apart() -> None:
    """Whether memory ran out in an evaluation or in training goes by the phase of the first OOM."""
    assert classified(*_BEGUN, oom(phase="evaluation")).in_evaluation
    assert not classified(*_BEGUN, oom(phase="forward"), oom(phase="evaluation")).in_evaluation


def test_the_rank_that_needs_most_is_reported() -> None:
    """Peaks and phases are those of the rank with most memory, whichever spoke last."""
    phases = [{"iteration": 1, "phase": "backward", "peak_allocated_bytes": 500, "end_allocated_bytes": 3}]
    ranks = [started(pid, rank=2 - pid, world_size=2) for pid in (1, 2)]
    most = measured("steps", 3, 1, peak_allocated_bytes=500_000, fixed_bytes=77, phases=phases)
    trial = classified(*ranks, device(1), device(2), most, measured("steps", 3, 2, peak_reserved_bytes=2**22)).trial

    assert (trial.peak_allocated_bytes, trial.fixed_bytes, trial.peak_reserved_bytes) == (500_000, 77, 2**22)
    assert [(phase.phase, phase.peak_allocated_bytes) for phase in trial.phases] == [("backward", 500)]


def test_a_launcher_is_no_trainer() -> None:
    """A process that imported torch and never used a GPU counts neither as a rank nor for its memory."""
    launcher = (started(9), measured("exit", 0, 9, cuda=False, peak_allocated_bytes=None))
    record = events([*_BEGUN, *launcher, measured("steps", 3)])

    assert events(launcher).trainers() == []
    assert record.world_size == 1
    assert record.has_all_steps
    assert [message.pid for message in record.trainers()] == [1]


def test_a_trial_is_over_once_every_rank_has_all_its_steps() -> None:
    """With two ranks the first one's steps do not end the trial."""
    ranks = [*(started(pid, rank=pid, world_size=2) for pid in (1, 2)), device(1), device(2)]

    assert not events([*ranks, measured("steps", 3, 1)]).has_all_steps
    assert events([*ranks, measured("steps", 3, 1), measured("steps", 3, 2)]).has_all_steps


def test_an_oom_before_and_after_a_step_is_no_difference() -> None:
    """A process that runs out after its first step has not survived that, until it takes another."""
    record = events([*_BEGUN, step(1), oom()])
    assert not record.has_survived

    record.add(step(2))
    assert record.has_survived


def test_what_was_written_is_told_once_and_in_order() -> None:
    """Each path that the command wrote to is kept once."""
    paths = ["/b", "/a", "/b"]

    assert list(events({"protocol": PROTOCOL, "event": "wrote", "pid": 1, "path": path} for path in paths).written) == [
        "/b",
        "/a",
    ]


def _noted(*peaks: int, parameter_bytes: int = 1000) -> Observations:
    phases = [
        {"iteration": number, "phase": "backward", "peak_allocated_bytes": peak, "end_allocated_bytes": 1}
        for number, peak in enumerate(peaks, 1)
    ]
    said = events([started(), device(), measured("steps", len(peaks), phases=phases, parameter_bytes=parameter_bytes)])
    observations = Observations()
    observations.take(said, classify_trial(EndedTrial(said, None, False, 1.0, None), 8, CAPACITY, len(peaks)), 8)  # noqa: FBT003 - by name
    return observations


@pytest.mark.parametrize(
    ("peaks", "rising"), [((50, 100, 100), None), ((90, 100, 120), 8), ((120, 100, 100), None), ((10, 100), None)]
)
def test_steps_that_need_more_and_more_are_noted(peaks: tuple[int, ...], rising: int | None) -> None:
    """A third step that needs more than the second is noted; that the second needs more than the first is usual."""
    assert _noted(*(1000 * peak for peak in peaks)).rising == rising


def test_parameters_without_gradients_are_noted() -> None:
    """Parameters that an optimizer holds and that have no gradient are noted by their size."""
    assert _noted(1, 2, 2, parameter_bytes=4000).untrained_bytes == 3000
    assert _noted(1, 2, 2).untrained_bytes == 0
