"""Figures for the tests of the baseline: of a small transformer, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from oomdoctor.check.baseline.figures import Baseline, Circumstances, Figures, MemoryFigures
from oomdoctor.results import Category

MIB = 1024**2
GIB = 1024**3

CIRCUMSTANCES = Circumstances(
    torch="2.15.0+cu130",
    device="null",
    card="NVIDIA GeForce RTX 4090",
    capacity_bytes=23_700 * MIB,
    precision="bf16",
    optimizer="AdamW",
    target_batch=256,
    world_size=1,
)
MEMORY = MemoryFigures(
    micro_batch=8,
    micro_steps=2,
    peak_allocated_bytes=10 * GIB,
    peak_reserved_bytes=10 * GIB + 200 * MIB,
    peak_phase="iteration 2 backward",
    phases={
        "iteration 1 forward": {Category.WEIGHTS: 2 * GIB, Category.ACTIVATIONS: 900 * MIB},
        "iteration 2 backward": {
            Category.WEIGHTS: 2 * GIB,
            Category.GRADIENTS: 2 * GIB,
            Category.OPTIMIZER_STATE: 4 * GIB,
            Category.ACTIVATIONS: 1000 * MIB,
            Category.WORKSPACE: 500 * MIB,
        },
        "iteration 2 optimizer": {Category.WEIGHTS: 2 * GIB, Category.OPTIMIZER_STATE: 4 * GIB},
    },
    categories={
        Category.WEIGHTS: 2 * GIB,
        Category.GRADIENTS: 2 * GIB,
        Category.OPTIMIZER_STATE: 4 * GIB,
        Category.ACTIVATIONS: 1000 * MIB,
        Category.INPUT: 512,
        Category.WORKSPACE: 500 * MIB,
    },
    modules={
        Category.WEIGHTS: {"encoder.layers.*.attention": GIB, "encoder.layers.*.linear": 512 * MIB, "head": 512 * MIB},
        Category.GRADIENTS: {"encoder.layers.*.attention": 2 * GIB},
        Category.OPTIMIZER_STATE: {"encoder.layers.*.attention": 4 * GIB},
        Category.ACTIVATIONS: {
            "encoder.layers.*.attention": 300 * MIB,
            "encoder.layers.*.linear": 400 * MIB,
            "head": 200 * MIB,
            "": 60 * MIB,
            None: 40 * MIB,
        },
        Category.INPUT: {None: 512},
        Category.WORKSPACE: {None: 500 * MIB},
    },
)
FIGURES = Figures(circumstances=CIRCUMSTANCES, maximum=12, limited_by="memory", accumulation_steps=22, memory=MEMORY)


def figures(**changes: Any) -> Figures:
    """The transformer's figures with other memory: fields of `MemoryFigures` by name."""
    return replace(FIGURES, memory=replace(MEMORY, **changes))


def with_category(category: Category, module: str | None, added_bytes: int, *, to_peak: bool = True) -> Figures:
    """The transformer's figures with more of a category in a module, and with a peak that is as much higher."""
    modules = MEMORY.modules[category]
    return figures(
        peak_allocated_bytes=MEMORY.peak_allocated_bytes + to_peak * added_bytes,
        categories={**MEMORY.categories, category: MEMORY.categories[category] + added_bytes},
        modules={**MEMORY.modules, category: {**modules, module: modules.get(module, 0) + added_bytes}},
    )


NUMBERS = st.integers(0, 2**63 - 1)
SIZES = st.integers(1, 2**50)
NAMES = st.text(max_size=20)
# PyTorch refuses a module whose name has a full stop or is empty; a path joins such names.
PATHS = st.lists(st.sampled_from(["encoder", "layers", "*", "head", "a b", '"', "é"]), max_size=4).map(".".join)
MODULES = st.none() | PATHS

any_circumstances = st.builds(
    Circumstances,
    torch=st.none() | NAMES,
    device=NAMES,
    card=NAMES,
    capacity_bytes=NUMBERS,
    precision=NAMES,
    optimizer=NAMES,
    target_batch=st.none() | NUMBERS,
    world_size=st.none() | NUMBERS,
    rank=st.none() | NAMES,
    axes=st.none() | NAMES,
    mode=st.none() | NAMES,
)


@st.composite
def any_memory(draw: st.DrawFn, micro_batch: int | None = None) -> MemoryFigures:
    """Memory whose categories are the sums of their modules."""
    modules = draw(
        st.dictionaries(st.sampled_from(Category), st.dictionaries(MODULES, SIZES, min_size=1, max_size=6), max_size=7)
    )
    return MemoryFigures(
        micro_batch=draw(NUMBERS) if micro_batch is None else micro_batch,
        micro_steps=draw(NUMBERS) if micro_batch is None else 2,
        peak_allocated_bytes=draw(SIZES),
        peak_reserved_bytes=draw(SIZES),
        peak_phase=draw(NAMES),
        phases=draw(st.dictionaries(NAMES, st.dictionaries(st.sampled_from(Category), SIZES), max_size=5)),
        categories={category: sum(rows.values()) for category, rows in modules.items()},
        modules=modules,
    )


def any_figures(micro_batch: int | None = None) -> st.SearchStrategy[Figures]:
    """Figures of any kind; with memory at `micro_batch` where that is given."""
    memory = any_memory(micro_batch)
    return st.builds(
        Figures,
        circumstances=any_circumstances,
        maximum=NUMBERS,
        limited_by=st.sampled_from(["memory", "target", "limit"]),
        accumulation_steps=st.none() | NUMBERS,
        memory=st.none() | memory if micro_batch is None else memory,
    )


any_baseline = st.dictionaries(NAMES, any_figures(), max_size=3).map(Baseline)
