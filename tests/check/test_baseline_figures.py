"""The figures that a baseline keeps of a probe's answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from documents import gpt2

from oomdoctor.check.baseline.figures import MOST_MODULES, figures_of, memory_figures
from oomdoctor.results import (
    Category,
    EvaluationBetween,
    Generation,
    MicroBatch,
    ModuleBytes,
    PhaseMemory,
    PhaseName,
    StepMemory,
    Variant,
)

ZERO = (0,) * len(Category)


def phase(iteration: int, micro_step: int, name: PhaseName, *peak: int) -> PhaseMemory:
    """A phase whose peak is made of the first categories."""
    return PhaseMemory(iteration, micro_step, name, 0, 0, (*peak, *ZERO[len(peak) :]), ZERO)


MEMORY = StepMemory(
    micro_batch=8,
    micro_steps=2,
    peak_allocated_bytes=1000,
    peak_reserved_bytes=2048,
    peak_event=7,
    peak_iteration=2,
    peak_phase=PhaseName.BACKWARD,
    categories=(),
    modules=(),
    category_peaks=(
        ModuleBytes("a.b", Category.WEIGHTS, 300, 2),
        ModuleBytes("", Category.WEIGHTS, 100, 1),
        ModuleBytes("a.b", Category.ACTIVATIONS, 500, 2),
        ModuleBytes(None, Category.ACTIVATIONS, 50, 2),
    ),
    phases=(
        phase(1, 1, PhaseName.FORWARD, 400, 200),
        phase(1, 2, PhaseName.FORWARD, 400, 300),
        phase(1, 2, PhaseName.OPTIMIZER, 400),
        phase(2, 1, PhaseName.FORWARD, 400, 250),
        phase(2, 2, PhaseName.FORWARD, 400, 150),
    ),
    timeline=(),
)


def test_the_answer_and_what_it_depends_on_are_kept() -> None:
    """The maximum, the plan's steps and the circumstances are the probe's."""
    result = gpt2(memory=MEMORY).result
    found = figures_of(result, {"torch": "2.15.0", "python": "3.11.7"})
    assert (found.maximum, found.limited_by, found.accumulation_steps) == (19, "memory", 14)
    assert (found.circumstances.torch, found.circumstances.card) == ("2.15.0", result.device.name)
    assert (found.circumstances.precision, found.circumstances.target_batch) == ("bf16", 256)
    assert found.profiled_micro_batch == 8


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        (Variant(), None),
        (Variant(mode="eval"), "eval"),
        (Variant(mode="generate", generation=Generation(8, 4, "static")), "generate 8 + 4 tokens, static cache"),
        (Variant(evaluation=EvaluationBetween()), "train, evaluation of as many between steps"),
        (Variant(evaluation=EvaluationBetween(64)), "train, evaluation of 64 between steps"),
    ],
)
def test_what_is_done_besides_training_is_kept(variant: Variant, told: str | None) -> None:
    """A baseline of another mode is not taken for one of training."""
    assert figures_of(replace(gpt2().result, variant=variant)).circumstances.mode == told


def test_nothing_that_fits_has_no_plan_and_no_memory() -> None:
    """Where not one sample fits, steps and memory are unknown rather than zero."""
    result = gpt2(accumulation=None, micro_batch=MicroBatch(maximum=0, recommended=0, limited_by="memory")).result
    found = figures_of(replace(result, memory=None))
    assert (found.maximum, found.accumulation_steps, found.profiled_micro_batch) == (0, None, None)
    assert found.circumstances.target_batch is None


def test_categories_are_counted_each_at_its_own_largest() -> None:
    """A category is what its modules sum to at the moment when it is largest."""
    found = memory_figures(MEMORY)
    assert found.categories == {Category.WEIGHTS: 400, Category.ACTIVATIONS: 550}
    assert found.modules == {
        Category.WEIGHTS: {"a.b": 300, "": 100},
        Category.ACTIVATIONS: {"a.b": 500, None: 50},
    }


def test_of_several_micro_steps_the_highest_peak_counts() -> None:
    """A phase has what its highest peak in an iteration is made of, however many micro-steps there are."""
    found = memory_figures(MEMORY)
    assert found.phases == {
        "iteration 1 forward": {Category.WEIGHTS: 400, Category.GRADIENTS: 300},
        "iteration 1 optimizer": {Category.WEIGHTS: 400},
        "iteration 2 forward": {Category.WEIGHTS: 400, Category.GRADIENTS: 250},
    }
    assert found.peak_phase == "iteration 2 backward"


@pytest.mark.parametrize("count", [MOST_MODULES, MOST_MODULES + 5000])
def test_a_model_of_thousands_of_modules_keeps_the_largest(count: int) -> None:
    """Beyond a number of modules only the largest are kept, while the category counts all of them."""
    rows = tuple(ModuleBytes(f"m{index}", Category.WEIGHTS, index + 1, 1) for index in range(count))
    found = memory_figures(replace(MEMORY, category_peaks=rows))
    assert len(found.modules[Category.WEIGHTS]) == MOST_MODULES
    assert f"m{count - 1}" in found.modules[Category.WEIGHTS]
    assert found.categories[Category.WEIGHTS] == count * (count + 1) // 2
