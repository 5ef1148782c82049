"""What a check does with the baseline file: when it is read, what it decides, and what an update writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from targets_for_tests import write_target

from oomdoctor.check.baseline.file import NAME, read_baseline
from oomdoctor.check.entries import Entry
from oomdoctor.check.runner import Check, CheckPlan, check
from oomdoctor.errors import UsageError
from oomdoctor.progress import SilentProgress
from oomdoctor.report.progress import CheckProgressLines
from oomdoctor.request import ProbeRequest
from oomdoctor.results import CheckedEntry, LimitName, MicroBatch, Verdict
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.probe import probe
from oomdoctor.units import MIB

pytestmark = pytest.mark.null_gpu

QUESTION = ProbeRequest(target="model.py", directory=Path("/"), target_batch=64, gpu="t4", memory_bytes=300 * MIB)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> ProbeRun:
    """What a real probe found, its memory recorded at micro-batch 8."""
    folder = tmp_path_factory.mktemp("model")
    write_target(folder)
    return probe(replace(QUESTION, directory=folder, profile_micro_batch=8), SilentProgress())


@dataclass
class Answers:
    """A cache that has an answer to everything but what is not there, and remembers what it was asked."""

    answer: ProbeRun
    asked: list[ProbeRequest]

    def find(self, request: ProbeRequest) -> ProbeRun | None:
        """The answer."""
        self.asked.append(request)
        return None if request.target == "gone.py" else self.answer


Run = Callable[..., Check]


@pytest.fixture
def run(answer: ProbeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Check entries in an empty folder, with the known answer or another."""
    monkeypatch.chdir(tmp_path)

    def run(*entries: Entry, update: bool = False, is_whole: bool = True, **others: Any) -> Check:
        plan = CheckPlan("oomdoctor.toml", entries, NAME, update, is_whole)
        cache: Any = Answers(others.get("answer", answer), others.get("asked", []))
        return check(plan, CheckProgressLines(quiet=True), jobs=1, cache=cache)

    return run


def entry(name: str, target: str = "model.py", **changes: Any) -> Entry:
    """An entry that asks for the baseline, unless it is told otherwise."""
    return replace(Entry(name, replace(QUESTION, target=target), baseline=True), **changes)


def only(found: Check) -> CheckedEntry:
    """The one entry."""
    (checked,) = found.result.entries
    return checked


def names() -> list[str]:
    """Entries in the file."""
    return sorted(read_baseline(Path(NAME)).entries)


def worse(answer: ProbeRun) -> ProbeRun:
    """The answer with half of the maximum, at the hands of memory."""
    return replace(answer, result=replace(answer.result, micro_batch=MicroBatch(32, 32, "memory")))


def test_what_is_not_asked_for_is_not_read(run: Run) -> None:
    """Where no entry wants a baseline, the file is left alone, whatever it holds."""
    Path(NAME).write_text("<<<<<<< ours")
    checked = only(run(entry("a", baseline=False)))
    assert (checked.verdict, checked.baseline, checked.movements) == (Verdict.PASSED, "none", ())
    assert run(entry("a", baseline=False)).result.baseline is None


def test_a_missing_baseline_fails(run: Run) -> None:
    """A comparison that is asked for and cannot be made is no pass; the file's name is in the result."""
    found = run(entry("a"))
    checked = only(found)
    assert (checked.verdict, checked.baseline, found.result.baseline) == (Verdict.FAILED, "missing", NAME)
    assert (checked.limits[0].name, checked.limits[0].holds) == (LimitName.BASELINE, False)
    assert not Path(NAME).exists()


def test_after_an_update_nothing_moves(run: Run) -> None:
    """An update passes and writes the file; the next check compares with it, and finds nothing."""
    written = only(run(entry("a"), update=True))
    assert (written.verdict, written.baseline) == (Verdict.PASSED, "updated")
    assert names() == ["a"]
    checked = only(run(entry("a")))
    assert (checked.verdict, checked.baseline, checked.movements, checked.warnings) == (
        Verdict.PASSED,
        "compared",
        (),
        (),
    )


def test_two_updates_write_the_same(run: Run) -> None:
    """The same answers are the same bytes."""
    run(entry("a"), entry("b"), update=True)
    first = Path(NAME).read_bytes()
    run(entry("b"), entry("a"), update=True)
    assert Path(NAME).read_bytes() == first


def test_what_got_worse_fails_until_it_is_updated(run: Run, answer: ProbeRun) -> None:
    """A maximum that falls fails the check; an update shows once more what moved, and takes it."""
    run(entry("a"), update=True)
    checked = only(run(entry("a"), answer=worse(answer)))
    assert (checked.verdict, checked.baseline) == (Verdict.FAILED, "compared")
    assert [movement.is_beyond for movement in checked.movements] == [True]
    lenient = only(run(entry("a", tolerance=0.6), answer=worse(answer)))
    assert (lenient.verdict, len(lenient.movements)) == (Verdict.PASSED, 1)
    updated = only(run(entry("a"), answer=worse(answer), update=True))
    assert (updated.verdict, updated.baseline) == (Verdict.PASSED, "updated")
    assert [movement.is_beyond for movement in updated.movements] == [False]
    assert only(run(entry("a"), answer=worse(answer))).movements == ()


def test_an_update_holds_to_the_limits_all_the_same(run: Run) -> None:
    """What is broken is written and still fails."""
    checked = only(run(entry("a", max_memory_bytes=MIB, micro_batch=8), update=True))
    assert (checked.verdict, checked.baseline) == (Verdict.FAILED, "updated")
    assert [limit.name for limit in checked.limits if not limit.holds] == [LimitName.MAX_MEMORY]


def test_an_update_of_some_keeps_the_others(run: Run) -> None:
    """Entries that did not run stay as they are; when all run, those that are gone go."""
    run(entry("a"), entry("b"), update=True)
    run(entry("c"), update=True, is_whole=False)
    assert names() == ["a", "b", "c"]
    run(entry("a"), entry("d"), entry("b", baseline=False), update=True)
    assert names() == ["a", "d"]


def test_nothing_is_written_unless_all_have_answers(run: Run) -> None:
    """One target at fault leaves the file as it was, and each of the others says so."""
    run(entry("a"), update=True)
    before = Path(NAME).read_bytes()
    found = run(entry("a"), entry("b", "gone.py"), entry("c"), update=True)
    assert Path(NAME).read_bytes() == before
    good, broken, new = found.result.entries
    assert (good.verdict, good.baseline) == (Verdict.PASSED, "compared")
    assert (new.verdict, new.baseline) == (Verdict.FAILED, "missing")
    assert "the baseline was not written" in good.warnings[0]
    assert (broken.verdict, broken.probe, broken.limits) == (Verdict.ERROR, None, ())
    assert broken.problem is not None
    assert broken.problem.message.startswith("no such file: `gone.py`")


def test_an_update_that_nobody_wants_is_refused(run: Run) -> None:
    """Where no entry asks for a baseline there is nothing to write, and the hint says how to ask."""
    with pytest.raises(UsageError, match="no entry asks for a baseline") as caught:
        run(entry("a", baseline=False), update=True)
    assert "`baseline = true`" in (caught.value.hint or "")


def test_a_baseline_that_cannot_be_read_is_refused_before_anything_runs(run: Run) -> None:
    """A file with a merge's marks is an error; an update of all writes it anew, one of some does not."""
    run(entry("a"), update=True)
    Path(NAME).write_text("<<<<<<< ours\n" + Path(NAME).read_text())
    asked: list[ProbeRequest] = []
    for is_update in (False, True):
        with pytest.raises(UsageError, match=NAME):
            run(entry("a"), asked=asked, update=is_update, is_whole=False)
    assert asked == []
    run(entry("a"), update=True)
    assert names() == ["a"]


def test_an_update_that_cannot_be_written_is_refused_before_anything_runs(run: Run) -> None:
    """Where the file cannot be written that is an error before long work."""
    Path(NAME).mkdir()
    asked: list[ProbeRequest] = []
    with pytest.raises(UsageError, match=f"`{NAME}` is a directory"):
        run(entry("a"), asked=asked, update=True)
    assert asked == []


# --- the size at which memory is recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"micro_batch": 4, "min_micro_batch": 6}, 4),
        ({"min_micro_batch": 6}, 8),
        ({}, 8),
        ({"min_micro_batch": 6, "max_memory_bytes": MIB}, 6),
        ({"min_micro_batch": 6, "baseline": False}, 6),
        ({"baseline": False}, None),
    ],
)
def test_memory_is_recorded_where_it_is_compared(run: Run, keys: dict[str, Any], expected: int | None) -> None:
    """The size that is asked for, else the baseline's; a limit on memory needs that at its own size."""
    run(entry("a"), update=True)
    asked: list[ProbeRequest] = []
    run(entry("a", **keys), asked=asked)
    assert [request.profile_micro_batch for request in asked] == [expected]


def test_an_update_goes_by_the_configuration(run: Run) -> None:
    """Where the configuration names a size, an update takes it; else the baseline's stays."""
    run(entry("a"), update=True)
    asked: list[ProbeRequest] = []
    run(entry("a", min_micro_batch=6), asked=asked, update=True)
    run(entry("a"), asked=asked, update=True)
    assert [request.profile_micro_batch for request in asked] == [6, 8]


# --- the rest of the result ------------------------------------------------------------------------------------------


def test_versions_are_those_of_what_answered(run: Run, answer: ProbeRun) -> None:
    """Torch's version is that of the workers; where none answered, of the torch that is installed."""
    assert run(entry("a")).versions == answer.versions
    silent = run(entry("a", "gone.py", baseline=False)).versions
    assert silent == answer.versions
