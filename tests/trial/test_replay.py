"""What a replay of two small trials predicts is what a trial at that size finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from targets_for_tests import MLP, write_target

from oomdoctor.agent.allocator_blocks import STEP_END, AllocationTrace, canonical_order, first_steps
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome
from oomdoctor.search.allocation_lines import StepAllocations, allocation_lines, live_peak, passing_allocations
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.protocol import ReplayTrials
from oomdoctor.trial.worker_answers import PredictedMax
from oomdoctor.units import GIB

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

# Does more in a step from eight samples on, so that a small trial and a large one are not alike.
CHANGING = MLP.replace(
    "    return model(batch)", "    batch = batch * 1.0 if len(batch) >= 8 else batch\n    return model(batch)"
)


@pytest.fixture
def start(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> Iterator[Callable[[str, int], WorkerTrialSource]]:
    """Start a supervisor for a target with so much memory."""
    running: list[WorkerTrialSource] = []

    def start(target: str, memory_bytes: int) -> WorkerTrialSource:
        request = ProbeRequest(target=target, directory=tmp_path, target_batch=2**20)
        supervisor = WorkerTrialSource(
            request, parse_reference(target, directory=tmp_path), null_environment(memory_bytes)
        )
        running.append(supervisor)
        supervisor.load()
        return supervisor

    yield start
    for supervisor in running:
        supervisor.close()


def _run(supervisor: WorkerTrialSource, micro_batch: int) -> Outcome:
    return supervisor.run(micro_batch, micro_steps=2, allowed_bytes=supervisor.capacity_bytes).outcome


def _predict_max(supervisor: WorkerTrialSource, low: int, high: int, *, retries: bool = True) -> int | None:
    return supervisor.predict_max(low, high, allowed_bytes=supervisor.capacity_bytes, retries=retries)


@pytest.mark.parametrize("memory_gib", [8, 24, 80])
def test_two_small_trials_predict_the_maximum(start: Callable[[str, int], WorkerTrialSource], memory_gib: int) -> None:
    """From two and three samples of GPT-2 the largest size is predicted to the sample, and no byte is left behind."""
    supervisor = start("gpt2", memory_gib * GIB)
    assert [_run(supervisor, size) for size in (2, 3)] == [Outcome.FITS] * 2
    before = supervisor.held

    predicted = _predict_max(supervisor, 3, 4096)

    assert predicted is not None
    assert [_run(supervisor, predicted + extra) for extra in (0, 1)] == [Outcome.FITS, Outcome.OOM]
    assert supervisor.held == before
    assert supervisor.notes.replaced == 0


def test_without_retries_less_is_predicted(start: Callable[[str, int], WorkerTrialSource]) -> None:
    """A size at which the allocator would have to give back its cache is not predicted as comfortable."""
    supervisor = start("vit_b16", 8 * GIB)
    for size in (8, 24):
        _run(supervisor, size)

    comfortable, largest = (_predict_max(supervisor, 24, 4096, retries=retries) for retries in (False, True))

    assert comfortable is not None
    assert largest is not None
    assert comfortable <= largest
    trial = supervisor.run(comfortable, micro_steps=2, allowed_bytes=supervisor.capacity_bytes)
    assert (trial.outcome, trial.alloc_retries) == (Outcome.FITS, 0)


def test_trials_at_the_edge_predict_only_where_no_others_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line through sizes that had room is better than one through neighbours that had not."""
    reference = parse_reference("gpt2", directory=tmp_path)
    source = WorkerTrialSource(ProbeRequest(target="gpt2", directory=tmp_path, target_batch=None), reference, {})
    asked: list[set[int]] = []

    def ask(question: ReplayTrials, _what: str) -> PredictedMax:
        asked.append({trial.micro_batch for trial in question.trials})
        return PredictedMax(5)

    monkeypatch.setattr(source, "_ask", ask)
    monkeypatch.setattr(source, "_replace_retired", lambda: None)
    source._tight_allocations = {300: "", 301: ""}
    for source._allocations in ({8: "", 24: ""}, {8: ""}):
        source.predict_max(24, 300, allowed_bytes=GIB, retries=False)

    assert asked == [{8, 24}, {8, 300, 301}]


def test_trials_at_the_edge_stand_in_for_others_that_are_not_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two sizes that had room do not the same, one that had not may do what the larger does."""
    reference = parse_reference("gpt2", directory=tmp_path)
    source = WorkerTrialSource(ProbeRequest(target="gpt2", directory=tmp_path, target_batch=None), reference, {})
    answers = {frozenset((8, 24)): None, frozenset((8, 24, 40)): 41}
    monkeypatch.setattr(
        source, "_ask", lambda question, _: PredictedMax(answers[frozenset(one.micro_batch for one in question.trials)])
    )
    monkeypatch.setattr(source, "_replace_retired", lambda: None)
    source._allocations, source._tight_allocations = {8: "", 24: ""}, {40: ""}

    assert source.predict_max(40, 300, allowed_bytes=GIB, retries=True) == 41


def test_trials_that_are_not_alike_predict_nothing(
    tmp_path: Path, start: Callable[[str, int], WorkerTrialSource]
) -> None:
    """A step that does something else at another size gives no line, until two sizes are alike."""
    supervisor = start(write_target(tmp_path, CHANGING), GIB)
    for size in (2, 16):
        _run(supervisor, size)
    assert _predict_max(supervisor, 16, 2**20) is None

    _run(supervisor, 32)
    predicted = _predict_max(supervisor, 32, 2**20)

    assert predicted is not None
    assert [_run(supervisor, predicted + extra) for extra in (0, 1)] == [Outcome.FITS, Outcome.OOM]


def test_one_trial_predicts_nothing(tmp_path: Path, start: Callable[[str, int], WorkerTrialSource]) -> None:
    """One size tells no growth, and a size that ran out tells nothing."""
    supervisor = start(write_target(tmp_path), GIB)
    _run(supervisor, 4)
    assert _run(supervisor, 2**17) is Outcome.OOM

    assert _predict_max(supervisor, 4, 2**17) is None


@pytest.mark.parametrize(
    ("events", "ordered"),
    [
        ([], []),
        ([512, 1024, -2, -1, 2048, -3], [512, 1024, -1, -2, 2048, -3]),
        ([512, -1, 1024, 512, -3, -2], [512, -1, 1024, 512, -2, -3]),
    ],
)
def test_frees_that_follow_each_other_have_one_order(events: list[int], ordered: list[int]) -> None:
    """Frees between two allocations stand in the order of their allocations, and allocations stay where they are."""
    assert list(canonical_order(events)) == ordered


def _steps(micro_batch: int) -> AllocationTrace:
    """Two steps: a batch that lives until the next one's is there, a state, and a workspace in between."""
    batch, state, workspace = 8 * micro_batch, 100, micro_batch
    return [batch, state, workspace, -3, STEP_END, batch, -1, workspace, -5]


def _allocations() -> StepAllocations:
    found = allocation_lines({size: _steps(size) for size in (2, 3)})
    assert found is not None
    return found


def test_further_steps_are_like_the_last() -> None:
    """What the second step frees of the first, the third frees of the second; nothing else is left."""
    lines = _allocations().with_steps(4)

    sizes = [line.size_at(2) if line.freed is None else -1 - line.freed for line in lines]
    assert sizes == [16, 100, 2, -3, 16, -1, 2, -5, 16, -4, 2, -7, 16, -6, 2, -9]


def test_a_step_that_leaves_more_is_not_repeated() -> None:
    """Where a step frees other things than it leaves, as one that leaks does, nobody knows the next."""
    found = allocation_lines({size: [size, STEP_END, size, 512] for size in (2, 3)})

    assert found is not None
    assert found.with_steps(8) == found.lines


def test_workspaces_are_what_passes() -> None:
    """An allocation that is freed before the next one may be a workspace, which a live peak can do without."""
    found = _allocations()

    assert passing_allocations(found.lines) == {2, 4}
    assert live_peak(found.lines, 2) == 100 + 2 * 16
    assert live_peak([*found.lines[:4]], 2, passing_allocations(found.lines)) == 16 + 100


def test_longer_trials_have_the_same_first_steps() -> None:
    """A trial of eight steps predicts by its first two, as one of two does."""
    two = _steps(2)

    assert first_steps([*two, STEP_END, 16, -4], 2) == two
    assert first_steps(two, 2) == two


def _summed(rows: int) -> AllocationTrace:
    """A step whose kernel takes a buffer, and counters beside it, from a number of rows on; both are freed at once."""
    buffer = [4096, 8, -3, -4] if rows >= 100 else []
    after = 2 + len(buffer) // 2
    return [8 * rows, 64, *buffer, rows, -1, 16, -2, -1 - after]


def test_a_buffer_that_begins_at_some_size_is_no_other_step() -> None:
    """The two largest trials are compared by what stays; what passes is as large as the largest trial had it."""
    found = allocation_lines({rows: _summed(rows) for rows in (2, 40, 200)})

    assert found is not None
    assert [line.size_at(400) for line in found.lines if line.freed is None] == [3200, 64, 4096, 8, 400, 16]
    assert [line.freed for line in found.lines if line.freed is not None] == [2, 3, 0, 1, 4]


def test_two_trials_have_to_do_the_same_to_the_last_buffer() -> None:
    """Before a third size is known, a buffer of one alone leaves them no lines; nor do other steps ever."""
    assert allocation_lines({rows: _summed(rows) for rows in (40, 200)}) is None
    others = {2: [8, 16, -1, 32], 40: [8, 16, 32, -1], 200: [8, 16, 32, -2, 64]}
    assert allocation_lines(others) is None
