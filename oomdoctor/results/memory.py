"""What memory is made of while a model trains: by category, by module and by phase."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.results.phase import PhaseName
from oomdoctor.results.snapshot import Category, CategoryBytes, TimelinePoint


@dataclass(frozen=True, slots=True)
class ModuleBytes:
    """Memory of one category that was allocated while a module ran, or that belongs to its parameters.

    Attributes:
        module: Path in the model with list positions as `*`, such as `encoder.layers.*.attention`; empty for the
            model itself; None for what no module accounts for, such as the batch and the loss.
        category: What it is for.
        allocated_bytes: Bytes in live blocks.
        blocks: How many blocks.
    """

    module: str | None
    category: Category
    allocated_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """What memory is made of in one phase of one iteration; of several micro-steps each has a phase of its own.

    Attributes:
        iteration: 1 or 2; the optimizer's state first exists in the second.
        micro_step: From 1; the optimizer's phase has that of the last one.
        phase: Forward, backward or optimizer.
        first_event: Events until it began; the start of recording is 0 and the first event 1.
        last_event: Events until it ended; the same where nothing was allocated or freed.
        peak_categories: Bytes by category at the phase's peak, in the order of `Category`.
        end_categories: Bytes by category at its end, in the same order.
    """

    iteration: int
    micro_step: int
    phase: PhaseName
    first_event: int
    last_event: int
    peak_categories: tuple[int, ...]
    end_categories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What memory is made of during one trial, as the allocator's own history tells.

    Attributes:
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step.
        peak_allocated_bytes: Most bytes in live tensors; the categories sum to it exactly, and so do the modules.
        peak_reserved_bytes: Most bytes held from the driver.
        peak_event: Events until it was reached.
        peak_iteration: Iteration of the peak.
        peak_phase: Phase of the peak.
        categories: Memory at the peak by category, largest first.
        modules: Memory at the peak by module and category, largest first.
        category_peaks: Each category by module at the first moment when that category alone is largest, in the order of
            `Category` and then largest first; unlike the peak of all, it moves only as much as the category does.
        phases: Memory by phase, in order.
        timeline: Memory over both iterations, thinned to at most 400 points, each with the number of events until it;
            times are None, so that two runs agree.
    """

    micro_batch: int
    micro_steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    peak_iteration: int
    peak_phase: PhaseName
    categories: tuple[CategoryBytes, ...]
    modules: tuple[ModuleBytes, ...]
    category_peaks: tuple[ModuleBytes, ...]
    phases: tuple[PhaseMemory, ...]
    timeline: tuple[TimelinePoint, ...]
