"""Memory over a training step for the tests of reports: realistic, its variations, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import documents
from hypothesis import strategies as st

from oomdoctor.results import (
    Category,
    CategoryBytes,
    ModuleBytes,
    PhaseMemory,
    PhaseName,
    ProbeDocument,
    StepMemory,
    TimelinePoint,
)

MIB = 1024**2
MODULES = (
    ("transformer.h.*.mlp", Category.ACTIVATIONS, 9_216),
    ("transformer.h.*.attn", Category.ACTIVATIONS, 6_144),
    ("lm_head", Category.WORKSPACE, 3_700),
    ("transformer.h.*.mlp", Category.OPTIMIZER_STATE, 434),
    ("transformer.h.*.attn", Category.OPTIMIZER_STATE, 216),
    ("transformer.wte", Category.OPTIMIZER_STATE, 294),
    ("transformer.h.*.mlp", Category.WEIGHTS, 217),
    ("transformer.wte", Category.WEIGHTS, 147),
    ("transformer.h.*.attn", Category.WEIGHTS, 108),
    ("transformer.h.*.mlp", Category.GRADIENTS, 217),
    ("transformer.wte", Category.GRADIENTS, 147),
    ("transformer.h.*.attn", Category.GRADIENTS, 108),
    ("", Category.ACTIVATIONS, 12),
    (None, Category.INPUT, 3),
)
"""Module, category and MiB at the sample's peak."""

PHASES = (
    (1, 1, PhaseName.FORWARD, 400),
    (1, 1, PhaseName.BACKWARD, 500),
    (1, 2, PhaseName.FORWARD, 400),
    (1, 2, PhaseName.BACKWARD, 500),
    (1, 2, PhaseName.OPTIMIZER, 120),
    (2, 1, PhaseName.FORWARD, 400),
    (2, 1, PhaseName.BACKWARD, 500),
    (2, 2, PhaseName.FORWARD, 400),
    (2, 2, PhaseName.BACKWARD, 500),
    (2, 2, PhaseName.OPTIMIZER, 120),
)
"""Iteration, micro-step, phase, and how many events it has."""

_WEIGHTS, _GRADIENTS, _STATE, _ACTIVATIONS, _INPUT, _WORKSPACE = 472, 472, 944, 15_372, 3, 3_700
_POINTS = 40  # a phase, so that the sample is as long as a document gets


def step_memory(**changes: Any) -> StepMemory:
    """GPT-2 at its maximum: memory peaks when backward of the second iteration begins."""
    timeline, phases, event = [], [], 0
    for iteration, micro_step, phase, events in PHASES:
        first = event
        rows = [_sizes(iteration, micro_step, phase, share / (_POINTS - 1)) for share in range(_POINTS)]
        for number, row in enumerate(rows):
            at = first + 1 + number * (events - 1) // (_POINTS - 1)
            timeline.append(TimelinePoint(at, None, min(23_500 * MIB, sum(row) + 218 * MIB), row))
        event += events
        phases.append(PhaseMemory(iteration, micro_step, phase, first, event, max(rows, key=sum), rows[-1]))
    peak = max(timeline, key=lambda point: sum(point.categories))
    categories = [part for part in map(CategoryBytes, Category, peak.categories) if part.allocated_bytes]
    modules = tuple(ModuleBytes(module, category, size * MIB, 12) for module, category, size in MODULES)
    made = StepMemory(
        micro_batch=19,
        micro_steps=2,
        peak_allocated_bytes=sum(peak.categories),
        peak_reserved_bytes=23_500 * MIB,
        peak_event=peak.event,
        peak_iteration=2,
        peak_phase=PhaseName.BACKWARD,
        categories=tuple(sorted(categories, key=lambda part: -part.allocated_bytes)),
        modules=modules,
        category_peaks=modules,
        phases=tuple(phases),
        timeline=tuple(timeline),
    )
    return replace(made, **changes)


def _sizes(iteration: int, micro_step: int, phase: PhaseName, share: float) -> tuple[int, ...]:
    """Bytes by category so far into a phase."""
    backward = phase is PhaseName.BACKWARD
    has_gradients = micro_step > 1 or backward
    grown = 1.0 if micro_step > 1 else share
    state = 1.0 if iteration > 1 else share if phase is PhaseName.OPTIMIZER else 0.0
    held = {PhaseName.FORWARD: share, PhaseName.BACKWARD: 1 - share}.get(phase, 0.0)
    temporary = (1 - share) if backward else 0.25 if phase is PhaseName.OPTIMIZER else 0.0
    parts = (
        _WEIGHTS,
        _GRADIENTS * (grown if has_gradients else 0),
        _STATE * state,
        _ACTIVATIONS * held,
        _INPUT,
        _WORKSPACE * temporary,
        0,
    )
    return tuple(int(part * MIB) for part in parts)


def profiled(**changes: Any) -> ProbeDocument:
    """The sample of a probe with its memory; `changes` replace fields of the memory."""
    return documents.gpt2(memory=step_memory(**changes))


def many_modules(number: int = 10_000) -> StepMemory:
    """Memory that is spread over more modules than a page can show."""
    modules = [
        ModuleBytes(f"branch{index}.block.{'deep.' * 20}layer", Category.ACTIVATIONS, (index + 1) * 1000, 1)
        for index in range(number)
    ]
    return step_memory(modules=tuple(reversed(modules)))


# --- any timeline ----------------------------------------------------------------------------------------------------

_sizes_of_any = st.integers(0, 2**63 - 1)
any_timeline = st.lists(
    st.builds(
        TimelinePoint,
        st.integers(-5, 3000),
        st.none() | _sizes_of_any,
        _sizes_of_any,
        st.lists(_sizes_of_any, max_size=9).map(tuple),
    ),
    min_size=1,
    max_size=30,
)
"""Points as a document from elsewhere may have them: in any order, with any number of categories."""
