"""Rows of a prescription, from probes that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.errors import NoAnswerError
from oomdoctor.multi_card.pool import PooledProbe
from oomdoctor.prescription import measuring
from oomdoctor.prescription.measuring import Measuring, price
from oomdoctor.prescription.run import program_source
from oomdoctor.progress import SilentProgress
from oomdoctor.remedies.catalogue import KnownRemedy, remedy
from oomdoctor.request import build_request
from oomdoctor.results import Outcome, Trial
from oomdoctor.results.prescribe import StepCost
from oomdoctor.target.reference import parse_reference


def answered(case: PooledProbe, *_: object) -> Any:
    """A probe whose step has half the operations with any remedy, as where kernels hide them."""
    cost = StepCost(4, 50 if case.name else 100, 50 if case.name else 100)
    sizes = SimpleNamespace(maximum=4, recommended=4, limited_by="memory")
    result = SimpleNamespace(trials=(), micro_batch=sizes, device=SimpleNamespace(kind="null"), optimizer="AdamW")
    return SimpleNamespace(result=result, cost=cost, host_bytes=0, changes=())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    """A measuring whose target as it is was probed."""
    monkeypatch.setattr(measuring, "probe_case", answered)
    monkeypatch.setattr(KnownRemedy, "missing", None)
    workers: Any = SimpleNamespace(start=None)
    made = Measuring(build_request("gpt2", gpu="rtx-4090"), SilentProgress(), workers, 1, 79, 80)
    made.plain()
    return made


@pytest.mark.parametrize("name", ["compile", "compile-50", "liger-cross-entropy", "cut-cross-entropy"])
def test_what_no_count_sees_is_unknown(name: str, measured: Measuring) -> None:
    """Kernels that are no operators of PyTorch would make the step look cheap; unknown is dearer than any number."""
    hidden, checkpoint = measured.measure([(name,), ("checkpoint",)])
    assert (hidden.recomputed_flops_percent, hidden.extra_bytes_percent) == (None, None)
    assert hidden.unknown_operators == (remedy(name).uncounted,)
    assert checkpoint.recomputed_flops_percent == 0
    assert price(hidden)[2] > price(checkpoint)[2]


def test_the_trace_engine_refuses_by_name_what_it_does_not_run(measured: Measuring) -> None:
    """Nothing is probed for it."""
    measured.runs[()].result.device.kind = "trace"  # type: ignore[misc]
    rows = measured.measure([("compile",), ("liger-cross-entropy",), ("checkpoint",)])
    assert [row.outcome for row in rows] == ["not_applicable", "not_applicable", "measured"]
    assert "the trace engine" in (rows[0].problem or "")
    assert measured.probes == 2


def test_the_program_of_a_command_is_read_for_its_frameworks(tmp_path: Path) -> None:
    """The first Python file among its words, from the folder in which it runs; nothing where there is none."""
    request = build_request(("python", "train.py", "--batch-size", "{micro_batch}"), directory=tmp_path)
    assert program_source(request, None) == ""
    (tmp_path / "train.py").write_text("from transformers import Trainer\n")
    assert program_source(request, None) == "from transformers import Trainer\n"
    (tmp_path / "train.py").write_bytes(b"\xff")
    assert program_source(request, None) == ""


def test_the_users_file_is_read_likewise(tmp_path: Path) -> None:
    """A module or an example has no file to read here."""
    (tmp_path / "model.py").write_text("import accelerate\n")
    request = build_request("model.py", directory=tmp_path)
    assert program_source(request, parse_reference("model.py", directory=tmp_path)) == "import accelerate\n"
    assert program_source(request, parse_reference("gpt2", directory=tmp_path)) == ""


class Told(SilentProgress):
    """Keeps the stages."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        """Keep it."""
        self.stages.append(text)


def test_the_progress_says_how_much_is_done_and_what_is_measured(
    measured: Measuring,
) -> None:
    """Each row that begins is named beside the rows and probes that have ended; a round of one counts probes alone."""
    measured.progress = told = Told()
    measured.seconds = 70.0
    measured.measure([("checkpoint",), ("bf16",)])
    measured.measure([("checkpoint", "bf16")])
    each = "where each takes the 70 s of the target as it is"
    assert told.stages == [
        f"2 remedies alone, 1 at once: 2 min at most {each}; then their combinations",
        "0 of 2 rows of this round, 1 of at most 80 probes done, measuring checkpoint",
        "checkpoint: 4",
        "1 of 2 rows of this round, 2 of at most 80 probes done, measuring bf16",
        "bf16: 4",
        "3 of at most 80 probes done, measuring checkpoint + bf16",
        "checkpoint + bf16: 4",
    ]


@pytest.mark.parametrize(("quiet_seconds", "told_trials"), [(0.0, 2), (60.0, 0)])
def test_the_trials_of_a_slow_row_are_told(
    measured: Measuring, monkeypatch: pytest.MonkeyPatch, quiet_seconds: float, told_trials: int
) -> None:
    """The end of a trial inside a row is told where nothing else was for a while, and only there."""

    def slow(case: PooledProbe, *given: Any) -> Any:
        for size in (4, 8):
            given[-1].trial_finished(fits(size, 1, 100))
        return answered(case)

    monkeypatch.setattr(measuring, "probe_case", slow)
    monkeypatch.setattr(measuring, "_QUIET_SECONDS", quiet_seconds)
    measured.progress = told = Told()
    measured.measure([("checkpoint",)])
    running = "1 of at most 80 probes done, measuring checkpoint"
    trials = [f"{running} (1 trial), the last at micro-batch 4", f"{running} (2 trials), the last at micro-batch 8"]
    assert [text for text in told.stages if "trial" in text] == trials[:told_trials]
    assert running in told.stages


def test_a_row_without_an_answer_in_time_is_not_said_to_raise(
    measured: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit says nothing of the remedy's step."""
    monkeypatch.setattr(measuring, "probe_case", lambda *_: NoAnswerError("a trial took longer than 300 s"))
    (row,) = measured.measure([("checkpoint",)])
    assert (row.outcome, row.problem) == ("not_measured", "a trial took longer than 300 s")


def fits(size: int, steps: int, peak_bytes: int) -> Trial:
    """A trial that fits."""
    return Trial(size, Outcome.FITS, 1000, peak_bytes, micro_batches_per_step=steps)


def test_a_row_is_compared_with_steps_that_accumulate_as_those_of_the_target_do() -> None:
    """A plain step at the same size holds no gradients in its forward, and saves nothing by that."""
    trials = (fits(4, 2, 140), fits(8, 2, 180), fits(10, 1, 160))
    assert measuring._trial(trials, 10, like=fits(10, 2, 200)) is None
    assert measuring._trial((*trials, fits(10, 2, 200)), 10, like=fits(10, 8, 210)) == fits(10, 2, 200)
    assert measuring._slope(trials) == 10
    assert measuring._slope((fits(4, 2, 140), fits(10, 1, 170))) is None
    assert measuring._slope((fits(4, 2, 140), fits(14, 2, 140), fits(10, 1, 170), fits(20, 1, 270))) == 10
