"""Real runs of the shipped examples that die in a known way: the right cause comes first, from the snapshot alone."""

from __future__ import annotations

import pytest
from snapshot_scenarios import Load

from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import sources
from oomdoctor.results import CauseId, Confidence, DiagnosisResult

pytestmark = pytest.mark.null_gpu

RIGHT = {
    "dies_in_forward": CauseId.BATCH_TOO_LARGE,
    "dies_in_first_forward": CauseId.BATCH_TOO_LARGE,
    "dies_in_backward": CauseId.BATCH_TOO_LARGE,
    "dies_in_optimizer": CauseId.OPTIMIZER_STATE,
    "dies_moving_the_model": CauseId.MODEL_TOO_LARGE,
    "leak_of_outputs": CauseId.LEAK_ACROSS_STEPS,
    "leak_of_graphs": CauseId.LEAK_ACROSS_STEPS,
    "leak_in_a_ring_buffer": CauseId.LEAK_ACROSS_STEPS,
    "fragmentation": CauseId.FRAGMENTATION,
    "resnet_in_forward": CauseId.BATCH_TOO_LARGE,
    "lstm_in_forward": CauseId.BATCH_TOO_LARGE,
}


def diagnosed(scenario: Load, name: str) -> DiagnosisResult:
    """The diagnosis of a scenario's snapshot and nothing else."""
    return diagnose(sources([str(scenario(name).path)]))


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_cause_comes_first(scenario: Load, name: str) -> None:
    """What the run was made to die of is the first cause."""
    result = diagnosed(scenario, name)
    assert result.is_oom
    assert result.causes[0].id is RIGHT[name], result.causes


@pytest.mark.parametrize("name", ["clean", "clean_without_adam", "clean_evaluation"])
def test_a_clean_run_has_no_failure(scenario: Load, name: str) -> None:
    """Where nothing ran out, nothing is called an OOM, a leak or fragmentation."""
    result = diagnosed(scenario, name)
    assert not result.is_oom
    found = {cause.id for cause in result.causes}
    assert not found & {CauseId.LEAK_ACROSS_STEPS, CauseId.FRAGMENTATION, CauseId.OPTIMIZER_STATE}


def test_holes_that_are_seen_are_certain(scenario: Load) -> None:
    """A snapshot shows the holes themselves, so that fragmentation is no guess."""
    cause = diagnosed(scenario, "fragmentation").causes[0]
    assert cause.confidence is Confidence.CERTAIN
    assert "100.00 MiB were asked for in one piece" in cause.evidence


def test_the_leaking_line_is_in_the_evidence(scenario: Load) -> None:
    """The evidence of a leak names the line that allocated what stayed."""
    evidence = diagnosed(scenario, "leak_of_outputs").causes[0].evidence
    assert "scenarios.py:" in evidence or "gpt2.py:" in evidence


def test_two_snapshots_are_compared(scenario: Load) -> None:
    """Two files give both summaries and what differs between them."""
    paths = [str(scenario(name).path) for name in ("clean", "dies_in_forward")]
    result = diagnose(sources(paths))
    assert result.comparison is not None
    assert (result.comparison.before, result.comparison.after) == tuple(paths)
    assert result.comparison.after_bytes > result.comparison.before_bytes
