"""The accuracy bench: its arithmetic, its memory of earlier runs, its models, and that what is published is of them."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import accuracy
import pytest
import torch
from accuracy_summary import PROMISES, compared, errors, relative, summary
from accuracy_table import cases as table_of_cases
from accuracy_trials import answer, definition
from measuring import CAPACITIES_GIB
from zoo.cases import CASES, LEFT_OUT, ZOO, Case

from oomdoctor.target.importing import load_target
from oomdoctor.target.placement import check_batch, check_batch_sizes
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.variants import optimizer_names
from oomdoctor.units import GIB

RUNNABLE = [case for case in CASES if accuracy.is_runnable(case)]


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A target changes where imports come from, and its file is imported under a plain name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(ZOO)):
            del sys.modules[name]


def engine_row(allocated: int, maximum: int, *, reserved: int = 1000, **more: object) -> dict[str, object]:
    """An answer with one size and one capacity."""
    peaks = {"4": {"allocated_bytes": allocated, "reserved_bytes": reserved}}
    return {"peaks": peaks, "maxima": {"8": maximum}, "seconds": 2.0, "optimizer": "AdamW", **more}


def row(name: str, **engines: dict[str, object]) -> dict[str, object]:
    """A case and what engines say of it."""
    return {"name": name, "precision": "fp32", "engines": engines}


def shares(rows: list[dict[str, object]]) -> dict[str, tuple[float, bool]]:
    """For each promise the share that keeps it, and whether it holds."""
    return {each["promise"]: (each["share"], each["holds"]) for each in summary(rows, "trace")["promises"]}


def test_errors_are_signed_and_relative_to_the_null_gpu() -> None:
    """Too much is positive, too little negative, and a maximum of nothing is measured in samples."""
    found = errors(engine_row(1010, 2, reserved=990), engine_row(1000, 0))

    assert found == {"allocated": {"4": 0.01}, "reserved": {"4": -0.01}, "maxima": {"8": 2.0}}
    assert relative(None, 5) == math.inf


@pytest.mark.parametrize(
    ("allocated", "kept"),
    [(100_000, 3), (100_001, 2), (100_500, 2), (100_501, 1), (97_000, 1), (96_999, 0), (103_001, 0)],
)
def test_a_peak_keeps_the_promises_that_its_error_is_within(allocated: int, kept: int) -> None:
    """A peak equal to the byte keeps all three promises of peaks, one beyond 3 % keeps none."""
    found = shares([row("a", trace=engine_row(allocated, 1), null=engine_row(100_000, 1))])

    assert sum(found[promise.text][0] for promise in PROMISES if promise.kind == "allocated") == kept


def test_a_maximum_may_be_missed_from_below_and_hardly_from_above() -> None:
    """Ten of 100 too few keep the promise not to say too much, one of 40 too many breaks it; neither is equal."""
    rows = [
        row("few", trace=engine_row(1, 90), null=engine_row(1, 100)),
        row("many", trace=engine_row(1, 41), null=engine_row(1, 40)),
    ]

    assert shares(rows)["maximum micro-batch equal"] == (0.0, False)
    assert shares(rows)["maximum micro-batch at most 2 % above"] == (0.5, False)


def test_a_share_is_of_all_cases_that_the_null_gpu_answers() -> None:
    """A case without an answer keeps no promise, and one that the null GPU cannot answer is no part of it."""
    rows = [
        row("right", trace=engine_row(1, 1), null=engine_row(1, 1)),
        row("lost", trace=engine_row(1, 1, problem="", peaks={}, maxima={}), null=engine_row(1, 1)),
        row("unknowable", trace=engine_row(1, 1), null=engine_row(1, 1, problem="", peaks={}, maxima={})),
        row("not asked", null=engine_row(1, 1)),
    ]
    found = summary(rows, "trace")

    assert (found["cases"], found["unanswered"]) == (2, ["lost"])
    assert {each["share"] for each in found["promises"]} == {0.5}
    assert [each["holds"] for each in found["promises"]] == [True, *[False] * 5]


def test_a_case_is_as_good_as_its_worst_size() -> None:
    """Where one of two sizes is off, the case is not equal to the byte."""
    found, truth = engine_row(10, 1), engine_row(10, 1)
    for each, allocated in ((found, 21), (truth, 20)):
        each["peaks"] |= {"8": {"allocated_bytes": allocated, "reserved_bytes": 1}}

    assert shares([row("a", trace=found, null=truth)])["peak allocated equal to the byte"] == (0.0, False)


def test_the_worst_is_the_largest_error_of_either_sign() -> None:
    """The summary names the case and the size of the largest error, with its sign."""
    rows = [
        row("over", trace=engine_row(102, 1), null=engine_row(100, 1)),
        row("under", trace=engine_row(97, 1), null=engine_row(100, 1)),
    ]

    assert summary(rows, "trace")["worst"]["allocated"] == {"error": -0.03, "case": "under", "at": "4"}


def test_nothing_compared_keeps_nothing() -> None:
    """Without a case in common no promise holds."""
    found = summary([row("a", null=engine_row(1, 1))], "trace")

    assert [each["holds"] for each in found["promises"]] == [False] * len(PROMISES)
    assert [found["worst"]["maxima"], found["cases_with_all_maxima_equal"]] == [None, None]


def test_the_table_shows_figures_and_signed_errors() -> None:
    """Each case has a line with the null GPU's figures and what the other engine is off."""
    truth = engine_row(3 * GIB, 7, reserved=4 * GIB)
    found = engine_row(3 * GIB * 1001 // 1000, 7, reserved=4 * GIB)
    lost = engine_row(1, 1, peaks={}, maxima={}, problem="it cannot")
    lines = list(table_of_cases([row("a", trace=found, null=truth), row("b", trace=lost, null=truth)], "trace"))

    assert lines[2] == "| a | fp32 | AdamW | 3.00 GiB at 4 | +0.100% | 4.00 GiB | 0 | 7 | 0 |"
    assert lines[3].count("no answer") == 3


def test_an_answer_is_kept_while_its_question_and_versions_are_the_same(tmp_path: Path) -> None:
    """What was answered under these versions is not asked again; a changed case or version is."""
    one, other = CASES[:2]
    answered = {"versions": accuracy.installed(one), **engine_row(1, 1)}
    old = {**answered, "versions": {"torch": "1.0"}}
    rows = {one.name: definition(one) | {"engines": {"null": answered, "trace": old}}}
    file = tmp_path / "accuracy.json"
    changed = definition(other) | {"sizes": [1, 3], "engines": {"null": answered}}
    file.write_text(json.dumps(accuracy.document(rows | {other.name: changed})), encoding="utf-8")

    kept = accuracy.earlier(file)

    assert kept == rows
    assert accuracy.is_known(one, "null", kept)
    assert not accuracy.is_known(one, "trace", kept)
    assert not accuracy.is_known(other, "null", kept)


def test_the_zoo_is_as_wide_as_is_promised() -> None:
    """It has 45 cases of other names, 30 of them of `transformers`, every precision, and every optimizer of torch."""
    assert len({case.name for case in CASES}) == len(CASES) >= 45
    assert sum(case.needs == "transformers" for case in CASES) >= 30
    assert len({case.target for case in CASES if case.needs == "transformers"}) >= 30
    assert min(Counter(case.precision for case in CASES)[precision] for precision in ("fp32", "bf16", "fp16")) >= 10
    text = " ".join([*(f"'{case.optimizer}' {case.target}" for case in CASES), *(f"'{name}'" for name in LEFT_OUT)])
    assert [name for name in optimizer_names() if f"'{name}'" not in text] == []


@pytest.mark.filterwarnings("ignore")  # what libraries of models warn of is not ours
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_a_model_can_be_built(case: Case) -> None:
    """Each target is what a probe takes, its model can be built, and its batch heeds the size."""
    target = load_target(parse_reference(case.target, directory=ZOO))
    with torch.device("meta"):
        model = target.build_model()
        few, more = target.make_batch(2), target.make_batch(4)

    assert isinstance(model, torch.nn.Module)
    check_batch(few)
    check_batch_sizes(few, 2, more, 4)


def test_what_is_published_is_of_this_zoo() -> None:
    """The results file has the null GPU's answer to every case as it is now, with peaks of a size that trains."""
    document = json.loads(accuracy.FILE.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in document["cases"]}

    assert list(rows) == [case.name for case in CASES]
    assert {name: row for name, row in rows.items() if name not in accuracy.earlier(accuracy.FILE)} == {}
    for case in CASES:
        said = rows[case.name]["engines"]["null"]
        peaks = [peak["allocated_bytes"] / GIB for peak in said["peaks"].values()]
        assert "problem" not in said, case.name
        assert all(1 <= peak <= 20 for peak in peaks), (case.name, peaks)
        assert bool(said["zeros_read"]) == bool(case.reads), case.name
        assert list(said["maxima"]) == [str(capacity) for capacity in CAPACITIES_GIB]
        assert list(said["maxima"].values()) == sorted(said["maxima"].values()), case.name
    assert compared(document["cases"], "null") != {}


WIDE = """
import torch

def build_model():
    return torch.nn.Linear(64, 1 << 20, bias=False)

def make_batch(batch_size):
    return torch.randn(batch_size, 16, 64)

def training_step(model, batch):
    return model(batch).sum()
"""


@pytest.mark.null_gpu
def test_one_worker_answers_all_of_a_case(tmp_path: Path) -> None:
    """Both peaks and the maximum for every capacity come from trials in one worker, smaller cards' as well."""
    file = tmp_path / "wide.py"
    file.write_text(WIDE, encoding="utf-8")

    said = answer(Case("wide", str(file), "fp32", (4, 8), optimizer="SGD"), "null")

    first, second = (peak["allocated_bytes"] for peak in said["peaks"].values())
    assert round((second - first) / (4 << 26), 2) == 1
    assert (said["workers_replaced"], said["zeros_read"], said["optimizer"]) == (0, 0, "SGD")
    # An output takes 64 MiB a sample, and the allocator holds two: into the first one's room goes a gradient.
    assert said["maxima"] == {str(capacity): 8 * capacity - 3 for capacity in CAPACITIES_GIB}


def test_an_engine_that_is_not_there_is_a_problem_and_not_another_engine() -> None:
    """What another engine would have answered does not stand under the name that was asked."""
    assert "there is no engine `abacus`" in answer(CASES[0], "abacus")["problem"]
