"""What snapshots of real training runs on the null GPU are read as."""

# ruff: noqa: D103

from __future__ import annotations

import pytest
from snapshot_scenarios import Load

from oomdoctor.diagnose.snapshot.composition import compare
from oomdoctor.diagnose.snapshot.summary import summarise
from oomdoctor.results import Category, Composition, SnapshotSummary, TrainingPhase
from oomdoctor.units import MIB

pytestmark = pytest.mark.null_gpu

CLEAN = ("clean", "clean_without_adam", "clean_evaluation", "recorded_late", "ring_buffer", "recovered")
DYING = (
    "dies_in_forward", "dies_in_first_forward", "dies_in_backward", "dies_in_optimizer", "dies_moving_the_model",
    "leak_of_outputs", "leak_of_graphs", "leak_in_a_ring_buffer", "fragmentation",
    "resnet_in_forward", "lstm_in_forward",
)  # fmt: skip
WITH_WHOLE_HISTORY = (
    "clean",
    "clean_without_adam",
    "clean_evaluation",
    "recovered",
    *(name for name in DYING if name != "leak_in_a_ring_buffer"),
)


def bytes_of(composition: Composition, *categories: Category) -> int:
    return sum(part.allocated_bytes for part in composition.categories if part.category in categories)


def assert_free_bytes_add_up(summary: SnapshotSummary) -> None:
    holes = summary.fragmentation
    assert holes.hole_bytes + holes.cached_bytes == summary.end.reserved_bytes - summary.end.allocated_bytes
    assert holes.segments_with_holes <= holes.segments
    assert holes.largest_hole_bytes <= holes.hole_bytes


@pytest.mark.parametrize("name", [*CLEAN, "without_history"])
def test_the_end_is_what_pytorch_counts(scenario: Load, name: str) -> None:
    """Where nothing ran out, allocated and reserved bytes are the allocator's own when the snapshot was taken."""
    found = scenario(name)
    assert found.summary.end.allocated_bytes == found.truth["end"]["allocated"]
    assert found.summary.end.reserved_bytes == found.truth["end"]["reserved"]
    assert found.summary.tried_bytes is None


@pytest.mark.parametrize("name", DYING)
def test_the_end_is_the_moment_when_memory_ran_out(scenario: Load, name: str) -> None:
    """What the error's unwinding freed before the snapshot was taken is in the end, to the byte."""
    found, truth = scenario(name).summary, scenario(name).truth
    assert found.end.allocated_bytes == truth["at_oom"]["allocated"]
    assert found.end.reserved_bytes == truth["at_oom"]["reserved"]
    assert found.free_bytes == truth["at_oom"]["free"]
    # PyTorch's message and its observer tell the segment that would have been taken, the history tells the block.
    assert found.tried_bytes <= truth["at_oom"]["requested"] < found.tried_bytes + 20 * MIB


@pytest.mark.parametrize("name", WITH_WHOLE_HISTORY)
def test_the_peak_is_what_pytorch_counts(scenario: Load, name: str) -> None:
    """The peak equals `max_memory_allocated` to the byte, with the rests that the allocator does not split off."""
    assert scenario(name).summary.peak.allocated_bytes == scenario(name).truth["peak"]


@pytest.mark.parametrize("name", [*CLEAN, *DYING, "without_history"])
def test_categories_sum_to_the_allocated_bytes(scenario: Load, name: str) -> None:
    """At the end, at the peak and at every point of the timeline, the categories are the whole."""
    summary: SnapshotSummary = scenario(name).summary
    for composition in (summary.end, summary.peak):
        assert bytes_of(composition, *Category) == composition.allocated_bytes
        sizes = [part.allocated_bytes for part in composition.categories]
        assert sizes == sorted(sizes, reverse=True)
        assert all(sizes)
    if summary.timeline:
        assert max(sum(point.categories) for point in summary.timeline) == summary.peak.allocated_bytes
        assert all(min(point.categories) >= 0 for point in summary.timeline)


@pytest.mark.parametrize("name", WITH_WHOLE_HISTORY)
def test_inferred_categories_are_the_true_ones(scenario: Load, name: str) -> None:
    """Weights, gradients and optimizer state are told from the stacks alone as PyTorch's own tensors tell."""
    found = scenario(name)
    when = "end" if found.truth["oom"] is None or name == "recovered" else "at_oom"
    known = found.addresses(when)
    if not known:
        return
    told = summarise(found.raw, known)[0].end
    for category in (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE):
        true, inferred = bytes_of(told, category), bytes_of(found.summary.end, category)
        assert abs(true - inferred) <= 0.02 * true + 4096, (category, true, inferred)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("dies_in_forward", TrainingPhase.FORWARD),
        ("dies_in_first_forward", TrainingPhase.FORWARD),
        ("dies_in_backward", TrainingPhase.BACKWARD),
        ("dies_in_optimizer", TrainingPhase.OPTIMIZER_STEP),
        ("dies_moving_the_model", TrainingPhase.MODEL_TO_DEVICE),
        ("resnet_in_forward", TrainingPhase.FORWARD),
        ("lstm_in_forward", TrainingPhase.FORWARD),
    ],
)
def test_the_phase_in_which_memory_ran_out(scenario: Load, name: str, phase: TrainingPhase) -> None:
    """The failed request's stack tells what the program was doing, and backward's caller where it has none."""
    summary = scenario(name).summary
    assert summary.phase is phase
    assert summary.user_line is not None
    assert summary.user_line.path.endswith(("scenarios.py", "gpt2.py", "resnet50.py", "lstm.py"))


@pytest.mark.parametrize("name", [*CLEAN, *(name for name in DYING if not name.startswith("leak"))])
def test_what_does_not_leak_does_not_grow(scenario: Load, name: str) -> None:
    """No line grows in a run without a leak, however it ends."""
    assert scenario(name).summary.growing == ()


def test_outputs_that_are_kept_grow(scenario: Load) -> None:
    """A list of logits is found at the line that made them, with how much it held at first and at last."""
    found = scenario("leak_of_outputs")
    worst = found.summary.growing[0]
    assert (worst.place.path.rpartition("/")[2], worst.place.function) == ("gpt2.py", "forward")
    assert worst.category is Category.ACTIVATIONS
    assert worst.first_blocks == 1
    assert worst.last_blocks >= found.truth["steps"]
    assert worst.last_bytes > found.summary.end.allocated_bytes / 2


def test_a_leak_older_than_the_history_is_counted(scenario: Load) -> None:
    """What a ring buffer has lost is still live, with its stack, and counts as what the line held at first."""
    worst = scenario("leak_in_a_ring_buffer").summary.growing[0]
    assert worst.place == scenario("leak_of_outputs").summary.growing[0].place
    assert worst.last_blocks == scenario("leak_of_outputs").summary.growing[0].last_blocks
    assert worst.first_blocks > 1


def test_graphs_that_are_kept_grow(scenario: Load) -> None:
    """Losses kept with their graphs hold the activations of every step, which are found by line, largest first."""
    growing = scenario("leak_of_graphs").summary.growing
    assert growing[0].place.path.endswith("gpt2.py")
    assert all(line.category in {Category.ACTIVATIONS, Category.INPUT} for line in growing)
    grown = [line.last_bytes - line.first_bytes for line in growing]
    assert grown == sorted(grown, reverse=True)
    assert sum(grown) > scenario("leak_of_graphs").summary.end.allocated_bytes / 2


def test_fragmentation_shows_as_holes(scenario: Load) -> None:
    """Enough is free for the request, in holes none of which is large enough."""
    summary = scenario("fragmentation").summary
    holes = summary.fragmentation
    assert holes.largest_hole_bytes < summary.tried_bytes < holes.hole_bytes


@pytest.mark.parametrize("name", [*CLEAN, *DYING, "without_history"])
def test_holes_and_cache_are_what_is_not_allocated(scenario: Load, name: str) -> None:
    """Reserved bytes are allocated, in holes, or in segments that can be given back."""
    assert_free_bytes_add_up(scenario(name).summary)


def test_what_fills_memory_in_each_phase(scenario: Load) -> None:
    """Activations where a batch is too large; weights, gradients and state where the optimizer's first step fails."""
    for name in ("dies_in_forward", "dies_in_first_forward", "dies_in_backward"):
        end = scenario(name).summary.end
        assert bytes_of(end, Category.ACTIVATIONS, Category.WORKSPACE) > 0.9 * end.allocated_bytes
    end = scenario("dies_in_optimizer").summary.end
    fixed = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
    assert bytes_of(end, *fixed) > 0.99 * end.allocated_bytes
    end = scenario("dies_moving_the_model").summary.end
    assert bytes_of(end, Category.WEIGHTS) == end.allocated_bytes


def test_a_program_that_went_on_is_described_at_its_end(scenario: Load) -> None:
    """An error that the program survived is not the moment that counts."""
    summary = scenario("recovered").summary
    assert (summary.tried_bytes, summary.phase, summary.user_line) == (None, None, None)
    assert summary.peak.allocated_bytes > 10 * summary.end.allocated_bytes


def test_a_lost_beginning_is_told(scenario: Load) -> None:
    """A ring buffer that ran over and a recording that began late are `truncated`; a whole history is not."""
    assert scenario("ring_buffer").summary.truncated
    assert scenario("recorded_late").summary.truncated
    assert not scenario("clean").summary.truncated
    assert not scenario("without_history").summary.has_history


def test_older_blocks_are_told_apart_by_their_number(scenario: Load) -> None:
    """Recorded in the middle of training, Adam's two values a parameter are told from the parameter by its gradient."""
    found = scenario("recorded_late")
    told = summarise(found.raw, found.addresses("end"))[0].end
    assert bytes_of(told, Category.OPTIMIZER_STATE) == bytes_of(found.summary.end, Category.OPTIMIZER_STATE)
    assert bytes_of(told, Category.WEIGHTS) == bytes_of(found.summary.end, Category.WEIGHTS)


def test_the_largest_blocks_and_lines_are_named(scenario: Load) -> None:
    """Largest first, with the user's line and the innermost frame without the path of the installation."""
    summary = scenario("dies_in_first_forward").summary
    sizes = [block.size_bytes for block in summary.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert 10 < len(sizes) <= 20
    alike = [(block.size_bytes, block.category, block.place, block.innermost) for block in summary.largest]
    assert len(set(alike)) == len(alike)
    assert any(block.blocks > 1 for block in summary.largest)
    assert summary.largest[0].innermost.startswith("forward (torch/nn/modules/linear.py:")
    assert summary.largest[0].place.path.endswith("gpt2.py")
    assert len(summary.end.lines) <= 20
    assert sum(line.allocated_bytes for line in summary.end.lines) <= summary.end.allocated_bytes


def test_memory_of_backward_is_named_by_its_caller(scenario: Load) -> None:
    """What the engine's thread allocates has no line of its own, and is found at the line that called backward."""
    workspace = [line for line in scenario("dies_in_backward").summary.end.lines if line.category is Category.WORKSPACE]
    assert [line.place.function for line in workspace] == ["train"]


def test_two_snapshots_are_compared_at_their_peaks(scenario: Load) -> None:
    """Each line's memory before and after, largest difference first, and nothing where they are the same."""
    before, after = scenario("clean").summary, scenario("dies_in_forward").summary
    both = compare(before, after)
    assert (both.before, both.after) == ("clean.pickle", "dies_in_forward.pickle")
    assert sum(both.before_categories) == both.before_bytes == before.peak.allocated_bytes
    assert sum(both.after_categories) == both.after_bytes == after.peak.allocated_bytes
    differences = [abs(line.after_bytes - line.before_bytes) for line in both.lines]
    assert differences == sorted(differences, reverse=True)
    assert both.lines[0].place.path.endswith("gpt2.py")
    assert compare(before, before).lines == ()


@pytest.mark.parametrize("way", ["native", "alloc", "expandable"])
def test_other_ways_of_recording(scenario: Load, way: str) -> None:
    """With frames of C++, without stacks for frees, and with expandable segments, the same is found."""
    clean, backward, leak = (
        scenario(f"{name}@{way}") for name in ("clean_without_adam", "dies_in_backward", "leak_of_outputs")
    )
    assert bytes_of(clean.summary.end, Category.GRADIENTS) == bytes_of(clean.summary.end, Category.WEIGHTS) > 0
    assert backward.summary.phase is TrainingPhase.BACKWARD
    assert clean.summary.growing == backward.summary.growing == ()
    assert leak.summary.growing[0].place.path.endswith("gpt2.py")
    for found in (clean, backward, leak):
        truth = found.truth["at_oom"] or found.truth["end"]
        assert found.summary.peak.allocated_bytes == found.truth["peak"]
        assert found.summary.end.allocated_bytes == truth["allocated"]
        assert found.summary.end.reserved_bytes == truth["reserved"]
        assert_free_bytes_add_up(found.summary)
