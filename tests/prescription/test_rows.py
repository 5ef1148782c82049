"""Rows of a prescription, from probes that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.multi_card.pool import Case
from oomdoctor.prescription import measuring
from oomdoctor.prescription.measuring import Measuring, price
from oomdoctor.prescription.run import program_source
from oomdoctor.progress import SilentProgress
from oomdoctor.remedies.catalogue import Remedy, remedy
from oomdoctor.request import build_request
from oomdoctor.results.prescribe import StepCost
from oomdoctor.target.reference import parse_reference


def answered(case: Case, *_: object) -> Any:
    """A probe whose step has half the operations with any remedy, as where kernels hide them."""
    cost = StepCost(4, 50 if case.name else 100, 50 if case.name else 100)
    sizes = SimpleNamespace(maximum=4, recommended=4, limited_by="memory")
    result = SimpleNamespace(trials=(), micro_batch=sizes, device=SimpleNamespace(kind="null"), optimizer="AdamW")
    return SimpleNamespace(result=result, cost=cost, host_bytes=0, changes=())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    """A measuring whose target as it is was probed."""
    monkeypatch.setattr(measuring, "probe_case", answered)
    monkeypatch.setattr(Remedy, "missing", None)
    workers: Any = SimpleNamespace(start=None)
    made = Measuring(build_request("gpt2", gpu="rtx-4090"), SilentProgress(), workers, 1, 80)
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
