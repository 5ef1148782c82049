"""What memory is made of, for targets small enough to count by hand, at 64 samples of 256 numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from profiles import CASES, Case, Profiled, by_category

from oomdoctor.results import Category, ModuleBytes, Outcome, PhaseMemory, PhaseName

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]

Get = Callable[..., Profiled]

WEIGHT, BIAS_1, BIAS_2 = 256 * 512 * 4, 512 * 4, 256 * 4
HIDDEN, OUTPUT, SCALAR = 64 * 512 * 4, 64 * 256 * 4, 512


def _phase(found: Profiled, iteration: int, micro_step: int, name: PhaseName) -> PhaseMemory:
    return next(
        phase
        for phase in found.known.phases
        if (phase.iteration, phase.micro_step, phase.phase) == (iteration, micro_step, name)
    )


def _end(found: Profiled, iteration: int, micro_step: int, name: PhaseName) -> dict[Category, int]:
    return by_category(_phase(found, iteration, micro_step, name).end_categories)


def _modules(found: Profiled, category: Category) -> dict[str | None, int]:
    """A category by module when that category is largest."""
    return {one.module: one.allocated_bytes for one in found.known.category_peaks if one.category is category}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sum_is_exact(case: Case, profiled: Get) -> None:
    """The recorded peak is that of a trial that nobody watched, and all of it has a category and a place."""
    found = profiled(case)
    memory = found.known

    assert found.trial.outcome is Outcome.FITS
    if case.name != "never_again":
        assert memory.peak_allocated_bytes == found.trial.peak_allocated_bytes
        assert memory.peak_reserved_bytes == found.trial.peak_reserved_bytes
        assert found.is_repeated
    assert sum(one.allocated_bytes for one in memory.categories) == memory.peak_allocated_bytes
    assert sum(one.allocated_bytes for one in memory.modules) == memory.peak_allocated_bytes
    assert sum(one.allocated_bytes for one in memory.source_lines) in (memory.peak_allocated_bytes, 0)
    for phase in found.trial.phases:
        parts = [part for part in memory.phases if (part.iteration, part.phase) == (phase.iteration, phase.phase)]
        if case.name != "never_again":
            assert max(sum(part.peak_categories) for part in parts) == phase.peak_allocated_bytes
            assert sum(parts[-1].end_categories) == phase.end_allocated_bytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_timeline_goes_through_every_phase(case: Case, profiled: Get) -> None:
    """The timeline is in order, has the peak, ends with the last phase, and each phase begins where the last ended."""
    memory = profiled(case).known
    events = [point.event for point in memory.timeline]
    at = {point.event: point for point in memory.timeline}

    assert events == sorted(set(events))
    assert len(events) <= 400
    assert sum(at[memory.peak_event].categories) == memory.peak_allocated_bytes
    assert max(sum(point.categories) for point in memory.timeline) == memory.peak_allocated_bytes
    assert max(point.reserved_bytes for point in memory.timeline) <= memory.peak_reserved_bytes
    assert all(sum(point.categories) <= point.reserved_bytes for point in memory.timeline)
    assert events[-1] == memory.phases[-1].last_event
    assert at[events[-1]].categories == memory.phases[-1].end_categories
    ends = [0, *(phase.last_event for phase in memory.phases)]
    assert all(
        before <= phase.first_event <= phase.last_event for before, phase in zip(ends, memory.phases, strict=False)
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_each_category_is_what_can_be_counted(python: str, profiled: Get) -> None:
    """Weights, gradients, Adam's state, input and activations of two layers are their elements times four bytes."""
    found = profiled(Case("plain"), python)
    weights = 2 * WEIGHT + BIAS_1 + BIAS_2
    always = {Category.WEIGHTS: weights, Category.INPUT: OUTPUT}

    # The ReLU's output is kept for the second layer, the output for the square, and the loss is there as well.
    kept = {Category.ACTIVATIONS: HIDDEN + OUTPUT + SCALAR}
    first = _end(found, 1, 1, PhaseName.FORWARD)
    assert {name: size for name, size in first.items() if name is not Category.WORKSPACE} == always | kept

    after = _end(found, 1, 2, PhaseName.BACKWARD)
    assert after[Category.GRADIENTS] == weights
    assert after[Category.ACTIVATIONS] == SCALAR
    last = _end(found, 2, 2, PhaseName.FORWARD)
    assert {name: size for name, size in last.items() if name is not Category.WORKSPACE} == always | kept | {
        Category.GRADIENTS: weights,
        Category.OPTIMIZER_STATE: 2 * weights,
    }
    assert Category.GRADIENTS not in _end(found, 2, 2, PhaseName.OPTIMIZER)


def test_each_part_belongs_to_its_module(profiled: Get) -> None:
    """A layer has its weights, gradients and optimizer state; activations are of the layer that made them."""
    found = profiled(Case("plain"))

    layers = {"0": WEIGHT + BIAS_1, "2": WEIGHT + BIAS_2}
    assert _modules(found, Category.WEIGHTS) == layers
    assert _modules(found, Category.GRADIENTS) == layers
    assert _modules(found, Category.OPTIMIZER_STATE) == {name: 2 * size for name, size in layers.items()}
    assert _modules(found, Category.INPUT) == {None: 2 * OUTPUT}  # the last batch is there while the next is placed
    assert _modules(found, Category.ACTIVATIONS) == {"1": HIDDEN, "2": OUTPUT, None: 2 * SCALAR}


def test_a_backward_belongs_to_the_module_whose_forward_it_undoes(profiled: Get) -> None:
    """What the backward allocates is of the innermost module that computed it, and of no module for the loss."""
    modules = {one.module: one for one in profiled(Case("nested")).known.modules if one.category is Category.WORKSPACE}

    # At the peak the last layer's gradient is computed: of the output of `exp`, of twice `inner`, and of the loss.
    assert modules[""] == ModuleBytes("", Category.WORKSPACE, OUTPUT, 1)
    assert modules["layers.*.attention"] == ModuleBytes("layers.*.attention", Category.WORKSPACE, OUTPUT, 1)
    assert modules["layers.*.attention.inner"].allocated_bytes > OUTPUT
    assert modules[None] == ModuleBytes(None, Category.WORKSPACE, 2 * SCALAR, 2)


def test_alike_layers_are_one(profiled: Get) -> None:
    """Three layers of a list are one name with three times the bytes and blocks."""
    weights = next(one for one in profiled(Case("nested")).known.modules if one.category is Category.WEIGHTS)

    assert weights == ModuleBytes("layers.*.attention.inner", Category.WEIGHTS, 3 * (256 * 256 * 4 + 1024), 6)


@pytest.mark.parametrize("name", ["reentrant", "not_reentrant"])
def test_what_a_checkpoint_computes_again_is_activations(name: str, profiled: Get) -> None:
    """Forward keeps only the block's ends, and in backward one block's inside is there once more, by its modules."""
    found = profiled(Case(name))

    assert _end(found, 1, 1, PhaseName.FORWARD)[Category.ACTIVATIONS] <= 2 * OUTPUT + SCALAR
    inside = _modules(found, Category.ACTIVATIONS)
    assert (inside["blocks.*.0"], inside["blocks.*.1"]) == (4 * OUTPUT, 4 * OUTPUT)
    assert _end(found, 2, 2, PhaseName.OPTIMIZER).get(Category.ACTIVATIONS, 0) <= SCALAR


def test_tied_weights_count_once(profiled: Get) -> None:
    """A weight that two modules share is one block of the first of them, and buffers are weights."""
    table = 1000 * 64 * 4

    assert _modules(profiled(Case("tied")), Category.WEIGHTS) == {"embedding": table, "norm": 4 * 512 + 512}
    assert _modules(profiled(Case("tied")), Category.OPTIMIZER_STATE) == {"embedding": table, "norm": 2 * 512}


def test_a_part_without_gradients_keeps_no_activations(profiled: Get) -> None:
    """Under `no_grad` what the body computes is temporary, but for what the head needs."""
    kept = {
        name: _end(profiled(Case(name)), 1, 1, PhaseName.FORWARD)[Category.ACTIVATIONS] for name in ("grad", "no_grad")
    }

    assert kept == {"grad": 2 * OUTPUT + SCALAR, "no_grad": OUTPUT + SCALAR}
    assert _modules(profiled(Case("no_grad")), Category.GRADIENTS) == {"head": 256 * 16 * 4 + 512}


def test_accumulated_gradients_are_there_in_the_next_forward(profiled: Get) -> None:
    """With two micro-steps the second forward has gradients; with one there are none."""
    assert Category.GRADIENTS not in _end(profiled(Case("plain")), 2, 1, PhaseName.FORWARD)
    assert Category.GRADIENTS in _end(profiled(Case("plain")), 2, 2, PhaseName.FORWARD)
    assert [phase.micro_step for phase in profiled(Case("plain", micro_steps=1)).known.phases] == [1] * 6


def test_an_optimizer_that_steps_in_backward_holds_one_gradient(profiled: Get) -> None:
    """Gradients that go as soon as they are used are gradients while they are there, and the state is known."""
    found = profiled(Case("optimizer_in_backward"))
    weight = 256 * 256 * 4

    assert sum(_modules(found, Category.GRADIENTS).values()) == weight
    assert _modules(found, Category.OPTIMIZER_STATE) == {"*": 8 * weight}
    assert Category.GRADIENTS not in _end(found, 1, 1, PhaseName.BACKWARD)


@pytest.mark.parametrize("name", ["odd", "data_parallel"])
def test_modules_called_twice_and_in_place_and_with_odd_outputs_are_followed(name: str, profiled: Get) -> None:
    """A shared module has one name, and dicts and dataclasses of tensors stand in nobody's way."""
    found = profiled(Case(name))

    assert found.reason is None
    assert set(_modules(found, Category.WEIGHTS)) == {"twice.linear"}
    assert {"twice.linear", "twice", ""} <= {one.module for one in found.known.modules}


@pytest.mark.parametrize("name", ["compiled", "compiled_part", "scripted_part"])
def test_compiled_and_scripted_modules_are_one_piece(name: str, profiled: Get) -> None:
    """What no hook can look into is of the module around it, and nothing else changes."""
    found = profiled(Case(name))
    inner = "twice.linear" if name == "compiled" else "layers.*.attention.inner"

    assert found.reason is None
    assert _modules(found, Category.ACTIVATIONS)[""] > 0
    assert set(_modules(found, Category.WEIGHTS)) == {inner}


def test_sparse_gradients_are_gradients(profiled: Get) -> None:
    """The parts of a sparse gradient are found."""
    assert _end(profiled(Case("sparse")), 1, 1, PhaseName.BACKWARD)[Category.GRADIENTS] == 64 * 64 * 4 + 512


def test_a_target_that_takes_no_hooks_is_recorded_without_them(profiled: Get) -> None:
    """Categories are there, and the reason says what is not."""
    found = profiled(Case("no_hooks"))

    assert found.reason is not None
    assert "I take no hooks" in found.reason
    assert "only weights, gradients and optimizer state are attributed" in found.reason
    assert by_category(found.known.phases[0].end_categories) == by_category(
        profiled(Case("plain")).known.phases[0].end_categories
    )


def test_a_target_that_never_takes_the_same_memory_twice_is_told_so(profiled: Get) -> None:
    """Where no recorded trial has the peak of the one before, that is said."""
    assert "no two trials" in str(profiled(Case("never_again")).reason)


def test_foreach_shows_in_the_optimizer_phase(profiled: Get) -> None:
    """The temporaries of a foreach optimizer are workspace of the optimizer's phase."""
    one, all_ = (
        by_category(_phase(profiled(Case(name)), 2, 2, PhaseName.OPTIMIZER).peak_categories)[Category.WORKSPACE]
        for name in ("not_foreach", "adam")
    )

    assert all_ == 2 * WEIGHT + BIAS_1 + BIAS_2
    assert one != all_


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_keeps_half_of_the_activations(precision: str, profiled: Get) -> None:
    """Under autocast a layer keeps its input's cast, and its weight's where the input needs a gradient."""
    kept = _modules(profiled(Case("plain", precision=precision)), Category.ACTIVATIONS)

    assert kept == {"0": OUTPUT // 2, "1": HIDDEN // 2, "2": WEIGHT // 2, None: OUTPUT + 2 * SCALAR}


def test_collections_between_trials_pass_over_torch(profiled: Get) -> None:
    """After its first trial a worker has hundreds of thousands of objects out of the collector's way."""
    assert profiled(Case("plain")).frozen > 100_000
