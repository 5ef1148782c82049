"""What moved between two sets of figures, what of it fails, and in what order it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_figures import CIRCUMSTANCES, FIGURES, GIB, MEMORY, MIB, any_figures, figures, with_category

from oomdoctor.check.baseline.comparison import compare, differences, left_out
from oomdoctor.check.baseline.figures import Figures
from oomdoctor.results import Category, FigureKind, Movement

TOLERANCE = 0.02
TOLERANCES = st.floats(0, 2)
TEMPORARIES = {**MEMORY.phases["iteration 2 optimizer"], Category.WORKSPACE: 2 * GIB}


def moved(after: Figures, before: Figures = FIGURES, tolerance: float = TOLERANCE) -> dict[str, Movement]:
    """What moved, by name."""
    found = compare(before, after, tolerance=tolerance)
    return {movement.name: movement for movement in found}


def failing(after: Figures, tolerance: float = TOLERANCE) -> set[str]:
    """Names of what fails."""
    return {name for name, movement in moved(after, tolerance=tolerance).items() if movement.is_beyond}


# --- what is said ----------------------------------------------------------------------------------------------------


def test_a_category_that_grew_names_its_module() -> None:
    """The line has the category, how much of it moved at which size, and the share of the module that explains it."""
    found = moved(with_category(Category.ACTIVATIONS, "encoder.layers.*.linear", 412 * MIB))["activations"]
    text = "activations +412.00 MiB (+41 %) at micro-batch 8, +103 % in `encoder.layers.*.linear`"
    assert (found.text, found.is_beyond, found.kind) == (text, True, FigureKind.CATEGORY)
    assert (found.before, found.after) == (1000 * MIB, 1412 * MIB)


def test_growth_in_several_modules_names_what_holds_them() -> None:
    """Where two modules share the growth, the one that holds both is named, with its own percentage."""
    rows = {**MEMORY.modules[Category.ACTIVATIONS]}
    for module in ("encoder.layers.*.attention", "encoder.layers.*.linear"):
        rows[module] += 210 * MIB
    after = figures(
        categories={**MEMORY.categories, Category.ACTIVATIONS: 1420 * MIB},
        modules={**MEMORY.modules, Category.ACTIVATIONS: rows},
    )
    text = "activations +420.00 MiB (+42 %) at micro-batch 8, +60 % in `encoder.layers.*`"
    assert moved(after)["activations"].text == text


def test_a_module_that_had_nothing_has_no_percentage() -> None:
    """Growth in a module that held nothing of the category is told with the category's percentage."""
    found = moved(with_category(Category.ACTIVATIONS, "teacher.block", GIB))["activations"]
    assert found.text == "activations +1.00 GiB at micro-batch 8, +102 %, most of it in `teacher.block`"


def test_a_category_that_had_nothing_is_new() -> None:
    """Where the baseline has nothing of a category at all, it is new."""
    before = figures(categories={}, modules={})
    assert moved(FIGURES, before)["gradients"].text == (
        "gradients +2.00 GiB at micro-batch 8, new, most of it in `encoder.layers.*.attention`"
    )


def test_growth_from_next_to_nothing_has_no_percentage() -> None:
    """A figure that is many times what it was is told as such, and not as thousands of percent."""
    found = moved(with_category(Category.INPUT, None, GIB))
    assert found["input"].text == "input +1.00 GiB at micro-batch 8, from next to nothing"
    text = "input outside the modules +1.00 GiB at micro-batch 8, from next to nothing"
    assert found["input outside the modules"].text == text


def test_growth_outside_the_modules_names_its_phase() -> None:
    """What no module accounts for is told by the phase that grew with it, such as the optimizer's temporaries."""
    grown = with_category(Category.WORKSPACE, None, 2 * GIB, to_peak=False)
    assert grown.memory is not None
    after = replace(grown, memory=replace(grown.memory, phases={**MEMORY.phases, "iteration 2 optimizer": TEMPORARIES}))
    assert moved(after)["workspace"].text == "workspace +2.00 GiB at micro-batch 8, +410 % in the optimizer step"
    assert moved(grown)["workspace"].text == "workspace +2.00 GiB at micro-batch 8, +410 %"
    everywhere = {name: {**sizes, Category.WORKSPACE: 3 * GIB} for name, sizes in MEMORY.phases.items()}
    after = replace(grown, memory=replace(grown.memory, phases=everywhere))
    assert moved(after)["workspace"].text == "workspace +2.00 GiB at micro-batch 8, +410 %"


def test_peaks_say_where_they_are_now() -> None:
    """A peak has its growth, what it is now, and for tensors the phase that it is reached in."""
    after = figures(peak_allocated_bytes=11 * GIB, peak_reserved_bytes=12 * GIB, peak_phase="iteration 2 optimizer")
    found = moved(after)
    text = "peak allocated +1.00 GiB at micro-batch 8, +10 % to 11.00 GiB in iteration 2 optimizer"
    assert found["peak allocated"].text == text
    assert found["peak reserved"].text == "peak reserved +1.80 GiB at micro-batch 8, +18 % to 12.00 GiB"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"maximum": 10, "accumulation_steps": 26}, "12 -> 10, so 26 accumulation steps instead of 22"),
        ({"maximum": 11}, "12 -> 11"),
        ({"maximum": 0, "accumulation_steps": None}, "12 -> 0: not one sample fits any more"),
        ({"maximum": 256, "accumulation_steps": 1}, "12 -> 256, so 1 accumulation step instead of 22"),
        ({"maximum": 8, "limited_by": "target"}, "12 -> 8, the whole target of a device"),
    ],
)
def test_the_maximum_says_what_it_means_for_the_plan(changes: dict[str, object], text: str) -> None:
    """A maximum that moved is told with the accumulation steps that follow from it."""
    found = moved(replace(FIGURES, **changes))  # type: ignore[arg-type]
    assert found["maximum micro-batch"].text == f"maximum micro-batch {text}"


def test_modules_are_told_and_never_fail() -> None:
    """One module that doubles while another halves is told, and fails nothing: the model costs the same."""
    rows = MEMORY.modules[Category.ACTIVATIONS]
    turned = {**rows, "encoder.layers.*.linear": 700 * MIB, "encoder.layers.*.attention": 0}
    found = moved(figures(modules={**MEMORY.modules, Category.ACTIVATIONS: turned}))
    assert not any(movement.is_beyond for movement in found.values())
    text = "`encoder.layers.*.linear` activations +300.00 MiB at micro-batch 8, +75 %"
    assert found["encoder.layers.*.linear activations"].text == text


# --- what fails ------------------------------------------------------------------------------------------------------


def test_nothing_moved_says_nothing() -> None:
    """Equal figures give no movement, at no tolerance at all."""
    assert compare(FIGURES, FIGURES, tolerance=0) == ()


@pytest.mark.parametrize(("maximum", "fails"), [(12, 11), (100, 97), (51, 49)])
def test_a_maximum_that_falls_beyond_the_tolerance_fails(maximum: int, fails: int) -> None:
    """One of 12 is 8 % and fails at 2 %; two of 100 are just 2 % and pass."""
    before = replace(FIGURES, maximum=maximum)
    assert moved(replace(before, maximum=fails), before)["maximum micro-batch"].is_beyond
    if fails + 1 < maximum:
        assert not moved(replace(before, maximum=fails + 1), before)["maximum micro-batch"].is_beyond


def test_a_maximum_that_the_target_bounds_fails_nothing() -> None:
    """A smaller target batch ends the search sooner, which says nothing about memory."""
    assert failing(replace(FIGURES, maximum=4, limited_by="target")) == set()
    assert failing(replace(FIGURES, maximum=4)) == {"maximum micro-batch"}


def test_peaks_fail_beyond_the_tolerance() -> None:
    """A peak that is 3 % higher fails at 2 %, and passes at 4 %."""
    after = figures(peak_allocated_bytes=10 * GIB * 103 // 100)
    assert failing(after) == {"peak allocated"}
    assert failing(after, tolerance=0.04) == set()


def test_one_segment_more_fails_nothing() -> None:
    """Bytes held from the driver come in segments of 20 MiB, and one more is no evidence, however small the model."""
    before = figures(peak_reserved_bytes=60 * MIB)
    assert not moved(figures(peak_reserved_bytes=80 * MIB), before)["peak reserved"].is_beyond
    assert moved(figures(peak_reserved_bytes=100 * MIB), before)["peak reserved"].is_beyond


def test_a_small_figure_that_doubles_fails_nothing() -> None:
    """512 bytes of input that become 1024 are told, at the end of what is worse, and fail nothing."""
    after = with_category(Category.INPUT, None, 512)
    assert failing(after) == set()
    assert "input" in moved(after)


def test_without_tolerance_any_growth_fails() -> None:
    """Whoever asks for a tolerance of 0 hears of every byte."""
    assert failing(with_category(Category.INPUT, None, 512), tolerance=0) == {"input", "peak allocated"}


def test_a_category_below_the_peak_fails_as_well() -> None:
    """Temporaries of the optimizer that stay below the peak in backward are caught before they are the peak."""
    assert failing(with_category(Category.WORKSPACE, None, GIB, to_peak=False)) == {"workspace"}


def test_a_phase_below_the_peak_fails_where_no_category_does() -> None:
    """Temporaries that stay below what workspace holds in backward are caught by the optimizer's phase."""
    found = moved(figures(phases={**MEMORY.phases, "iteration 2 optimizer": TEMPORARIES}))
    text = "iteration 2 optimizer +2.00 GiB at micro-batch 8, +33 %, most of it workspace"
    assert [(movement.text, movement.is_beyond) for movement in found.values()] == [(text, True)]


def test_a_phase_names_what_grew_and_not_what_fell() -> None:
    """Where one category takes another's place in a phase, the one that grew explains that the phase did."""
    sizes = {Category.OPTIMIZER_STATE: 4 * GIB, Category.WORKSPACE: 3 * GIB}
    found = moved(figures(phases={**MEMORY.phases, "iteration 2 optimizer": sizes}))
    text = "iteration 2 optimizer +1.00 GiB at micro-batch 8, +17 %, most of it workspace"
    assert found["iteration 2 optimizer"].text == text


def test_a_phase_fails_nothing_where_a_category_does() -> None:
    """Of one cause one line fails: a phase that grew with its category only explains."""
    grown = with_category(Category.WORKSPACE, None, 2 * GIB)
    assert grown.memory is not None
    phases = {**MEMORY.phases, "iteration 2 optimizer": TEMPORARIES}
    found = moved(replace(grown, memory=replace(grown.memory, phases=phases)))
    assert (found["workspace"].is_beyond, found["iteration 2 optimizer"].is_beyond) == (True, False)


def test_a_category_that_grew_on_the_way_to_less_memory_fails_nothing() -> None:
    """Checkpointing trades workspace for activations: with a lower peak it passes, and what moved is told."""
    grown = {**MEMORY.categories, Category.ACTIVATIONS: 100 * MIB, Category.WORKSPACE: 900 * MIB}
    found = moved(figures(peak_allocated_bytes=9 * GIB, categories=grown))
    assert not any(movement.is_beyond for movement in found.values())
    assert {"activations", "workspace"} <= set(found)
    phases = {**MEMORY.phases, "iteration 2 optimizer": TEMPORARIES}
    assert failing(figures(peak_allocated_bytes=9 * GIB, phases=phases)) == set()


# --- in what order ---------------------------------------------------------------------------------------------------


def test_the_cause_comes_before_what_follows_from_it() -> None:
    """The category that grew comes first, then the peak, then the maximum; what is better comes last."""
    grown = with_category(Category.ACTIVATIONS, "encoder.layers.*.linear", 412 * MIB)
    assert grown.memory is not None
    after = replace(
        grown,
        maximum=11,
        accumulation_steps=24,
        memory=replace(
            grown.memory, categories={**grown.memory.categories, Category.INPUT: 1024, Category.WEIGHTS: GIB}
        ),
    )
    names = list(moved(after))
    assert names[:3] == ["activations", "peak allocated", "maximum micro-batch"]
    assert names[-1] == "weights"
    assert names.index("input") > names.index("encoder.layers.*.linear activations")


def test_a_cause_within_the_tolerance_still_comes_first() -> None:
    """Where a little more of a category costs one of 12 samples, the category is read before the maximum that fails."""
    grown = with_category(Category.WEIGHTS, "head", 38 * MIB)
    found = compare(FIGURES, replace(grown, maximum=11), tolerance=TOLERANCE)
    assert [movement.name for movement in found[:3]] == ["weights", "peak allocated", "maximum micro-batch"]
    assert [movement.is_beyond for movement in found[:3]] == [False, False, True]


def test_a_maximum_that_falls_comes_before_the_details() -> None:
    """A fall of the maximum is told before the modules that grew, however many bytes those are."""
    rows = {**MEMORY.modules[Category.ACTIVATIONS], "head": 500 * MIB}
    after = replace(figures(modules={**MEMORY.modules, Category.ACTIVATIONS: rows}), maximum=199)
    assert list(moved(after, replace(FIGURES, maximum=200))) == ["maximum micro-batch", "head activations"]


def test_what_is_allocated_comes_before_what_is_reserved() -> None:
    """Of the two peaks the allocated one is the cause, even where the reserved one grew by more."""
    after = figures(peak_allocated_bytes=11 * GIB, peak_reserved_bytes=13 * GIB)
    assert list(moved(after)) == ["peak allocated", "peak reserved"]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_category_that_the_peak_is_made_of_comes_first(sign: int) -> None:
    """Of two categories that moved, the one that moved the peak comes first, even where the other moved by more."""
    phase = {**MEMORY.phases["iteration 2 backward"], Category.ACTIVATIONS: (1000 + sign * 300) * MIB}
    after = figures(
        categories={
            **MEMORY.categories,
            Category.ACTIVATIONS: (1000 + sign * 300) * MIB,
            Category.WORKSPACE: (500 + sign * 400) * MIB,
        },
        phases={**MEMORY.phases, "iteration 2 backward": phase},
    )
    assert list(moved(after))[:2] == ["activations", "workspace"]


def test_the_first_iteration_is_not_told_where_it_moved_as_the_second_did() -> None:
    """A phase that grew in both iterations alike is told once."""

    def both(first: int, second: int) -> Figures:
        sizes = {"iteration 1 forward": {Category.INPUT: first}, "iteration 2 forward": {Category.INPUT: second}}
        return figures(phases=sizes)

    before = both(GIB, 2 * GIB)
    assert list(moved(both(2 * GIB, 3 * GIB), before)) == ["iteration 2 forward"]
    assert set(moved(both(3 * GIB, 3 * GIB), before)) == {"iteration 1 forward", "iteration 2 forward"}


# --- what cannot be compared -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (
            figures(micro_batch=6, categories={}),
            "memory at micro-batch 8 with accumulation, this check at micro-batch 6 with",
        ),
        (
            figures(micro_steps=1, categories={}),
            "micro-batch 8 with accumulation, this check at micro-batch 8 without accumulation",
        ),
        (replace(FIGURES, memory=None), "could not be recorded, so that only the maximum is compared"),
    ],
)
def test_memory_at_another_size_is_not_compared(after: Figures, sentence: str) -> None:
    """Figures at another micro-batch are left out, which is said; the maximum is compared all the same."""
    assert list(moved(replace(after, maximum=11))) == ["maximum micro-batch"]
    assert sentence in (left_out(FIGURES.memory, after.memory) or "")


def test_a_baseline_without_memory_says_so() -> None:
    """Where the baseline has no memory there is only the maximum."""
    before = replace(FIGURES, memory=None)
    assert list(moved(replace(FIGURES, maximum=11), before)) == ["maximum micro-batch"]
    assert "the baseline has no memory by category" in differences(before, FIGURES)[0]
    assert left_out(None, FIGURES.memory) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"torch": "2.16.0"}, "made with torch 2.15.0+cu130, this check ran with torch 2.16.0"),
        ({"card": "NVIDIA L40S"}, "made with NVIDIA GeForce RTX 4090, this check ran with NVIDIA L40S"),
        ({"device": "cuda"}, "made with the device kind `null`, this check ran with the device kind `cuda`"),
        ({"capacity_bytes": 20 * GIB}, "made with a capacity of 23.14 GiB, this check ran with a capacity of 20.00"),
        ({"precision": "fp32"}, "made with bf16, this check ran with fp32"),
        ({"target_batch": 128}, "made with a target batch of 256, this check ran with a target batch of 128"),
        ({"axes": "context 512"}, "made with no size besides the batch, this check ran with context 512"),
        ({"mode": "eval"}, "made with the mode `train`, this check ran with the mode `eval`"),
        ({"rank": "rank 6 of 7"}, "made with no rank that runs alone, this check ran with rank 6 of 7"),
    ],
)
def test_other_circumstances_are_told(changes: dict[str, object], sentence: str) -> None:
    """What the figures depend on besides the code is named where it differs."""
    after = replace(FIGURES, circumstances=replace(CIRCUMSTANCES, **changes))  # type: ignore[arg-type]
    (found,) = differences(FIGURES, after)
    assert sentence in found


def test_a_target_that_was_dropped_is_told() -> None:
    """The answer of a plain step is another question's."""
    (found,) = differences(FIGURES, replace(FIGURES, accumulation_steps=None))
    assert "made with a target batch, this check ran with no target batch" in found


def test_equal_circumstances_are_not_told() -> None:
    """Where nothing but the code changed, or where one side does not know, there is nothing to say."""
    unknown = replace(FIGURES, circumstances=replace(CIRCUMSTANCES, torch=None, target_batch=None))
    assert differences(unknown, FIGURES) == differences(FIGURES, unknown) == ()
    assert differences(FIGURES, with_category(Category.ACTIVATIONS, "head", GIB)) == ()


# --- of any figures --------------------------------------------------------------------------------------------------


@given(any_figures(8), TOLERANCES)
@settings(max_examples=50, deadline=None)
def test_figures_do_not_differ_from_themselves(before: Figures, tolerance: float) -> None:
    """No figures move against themselves."""
    assert compare(before, before, tolerance=tolerance) == ()
    assert differences(before, before) == ()


@given(any_figures(8), any_figures(8), TOLERANCES)
@settings(max_examples=100, deadline=None)
def test_only_what_is_worse_fails(before: Figures, after: Figures, tolerance: float) -> None:
    """Every movement has two figures that differ; one that fails is worse; worse ones come before better ones."""
    found = compare(before, after, tolerance=tolerance)
    worse = []
    for movement in found:
        change = (movement.after or 0) - (movement.before or 0)
        worse.append(change < 0 if movement.kind is FigureKind.MICRO_BATCH else change > 0)
        assert change
        assert worse[-1] or not movement.is_beyond
        assert movement.kind is not FigureKind.MODULE or not movement.is_beyond
    assert worse == sorted(worse, reverse=True)


@given(any_figures(8), any_figures(8), TOLERANCES, TOLERANCES)
@settings(max_examples=50, deadline=None)
def test_more_tolerance_fails_less(before: Figures, after: Figures, first: float, second: float) -> None:
    """What fails at a larger tolerance fails at a smaller one, unless the smaller one took the peak for better."""
    small, large = sorted((first, second))
    kinds = {FigureKind.MICRO_BATCH, FigureKind.PEAK}
    at_small = {one.name for one in compare(before, after, tolerance=small) if one.is_beyond and one.kind in kinds}
    at_large = {one.name for one in compare(before, after, tolerance=large) if one.is_beyond and one.kind in kinds}
    assert at_large <= at_small


@given(any_figures(), any_figures(), TOLERANCES)
@settings(max_examples=50, deadline=None)
def test_any_two_sets_of_figures_can_be_compared(before: Figures, after: Figures, tolerance: float) -> None:
    """Whatever the figures, comparing them and saying what differs raises nothing."""
    compare(before, after, tolerance=tolerance)
    differences(before, after)
