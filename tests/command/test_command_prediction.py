"""Two trials' allocations, replayed on the simulated allocator, predict how large a command's micro-batch may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_running import PYTHON, answer, small_copy
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.agent.allocator_blocks import AllocationTrace, pack, unpack
from oomdoctor.command.prediction import SimulatedCard, largest_simulated, read_allocations
from oomdoctor.engines.allocator.settings import NEWEST, AllocatorSettings
from oomdoctor.search.allocation_lines import TrialPlacement
from oomdoctor.units import MIB

CARD = SimulatedCard(1000 * MIB, 200 * MIB, 800 * MIB, AllocatorSettings(), NEWEST)


def _step(micro_batch: int) -> AllocationTrace:
    """Weights, and twice activations that are given back."""
    return [100 * MIB, 2 * MIB * micro_batch, MIB * micro_batch, -2, -3, 2 * MIB * micro_batch, -4]


def test_the_largest_size_is_that_which_the_card_has_room_for() -> None:
    """800 MiB hold 100 MiB of weights and 233 samples of 3 MiB, in whole pages; a card of half the room holds fewer."""
    placement = TrialPlacement.of({size: _step(size) for size in (4, 50)}, retries=True)
    half = SimulatedCard(1000 * MIB, 200 * MIB, 400 * MIB, AllocatorSettings(), NEWEST)

    assert placement is not None
    assert largest_simulated(placement, 50, 10_000, CARD) == 233
    assert largest_simulated(placement, 50, 10_000, half) == 100


def test_what_is_not_alike_predicts_nothing() -> None:
    """One trial alone, or two that did something else, give no line."""
    other = [*_step(50), MIB]

    assert TrialPlacement.of({4: _step(4)}, retries=True) is None
    assert TrialPlacement.of({4: _step(4), 50: other}, retries=True) is None


@given(st.text(max_size=60))
def test_a_text_that_is_no_trace_is_none(text: str) -> None:
    """Whatever the command's own code sends, it is a trace that can be, or none."""
    trace = read_allocations(text)

    assert trace is None or unpack(pack(trace)) == trace


@pytest.mark.parametrize("trace", [[], [-1], [512, -1, -1], [512, -2, 512]])
def test_a_trace_that_cannot_be_is_none(trace: AllocationTrace) -> None:
    """Nothing is freed before it is allocated, or twice, and an empty trace tells nothing."""
    assert read_allocations(pack(trace)) is None


@pytest.mark.null_gpu
def test_a_range_of_fifty_thousand_samples_takes_eight_trials(tmp_path: Path) -> None:
    """The plan's own trial included, and the answer is proven as any other."""
    words = (PYTHON, "many_samples.py", "--batch-size", "{micro_batch}", "--grad-accum", "{accumulation_steps}")
    result = answer(small_copy(tmp_path), "--capacity", "6GiB", "--target-batch", "50000", "--", *words)
    outcomes = {trial["micro_batch"]: trial["outcome"] for trial in result["trials"]}
    maximum = result["micro_batch"]["maximum"]

    assert maximum > 20_000
    assert (outcomes[maximum], outcomes[maximum + 1]) == ("fits", "oom")
    assert len(result["trials"]) <= 8


@pytest.mark.null_gpu
@pytest.mark.parametrize("capacity", ["200MiB", "500MiB"])
def test_workspaces_that_are_given_up_cost_no_trials(tmp_path: Path, capacity: str) -> None:
    """Where convolutions get no room for workspaces, a training goes on: a small card takes eight trials as well."""
    words = (PYTHON, "convolves.py", "--batch-size", "{micro_batch}")
    result = answer(small_copy(tmp_path), "--capacity", capacity, "--target-batch", "50000", "--", *words)
    outcomes = {trial["micro_batch"]: trial["outcome"] for trial in result["trials"]}
    maximum = result["micro_batch"]["maximum"]

    assert maximum > 400
    assert (outcomes[maximum], outcomes[maximum + 1]) == ("fits", "oom")
    assert len(result["trials"]) <= 8
