"""Figures of one entry that a baseline keeps, taken from a probe's result: by category, module, phase and trial.

That is so of a command, and of a trace. Two sizes are kept: the first that is tried, which every probe tries, and the
one whose memory was asked for. Where the second does not fit any more, the first still shows which phase has grown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from oomdoctor.codec import ADDED_LATER
from oomdoctor.command.template import accumulates
from oomdoctor.results import Category, Outcome, PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oomdoctor.results import ModuleBytes, PhaseMemory, ProbeResult, StepMemory, Trial, Variant


_ORDER: Final = {phase.value: rank for rank, phase in enumerate(PhaseName)}


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Memory at one micro-batch.

    Attributes:
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step; above 1 gradients stay alive during a forward.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        phases: Most bytes in live tensors by phase, such as `iteration 2 backward`.
    """

    micro_batch: int
    micro_steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phases: dict[str, int]

    @property
    def peak_phase(self) -> str:
        """The first phase that has the peak."""
        return max(sorted(self.phases, key=place_of), key=lambda name: self.phases[name], default="an unknown phase")

    @property
    def iterations(self) -> int:
        """The last iteration that was begun."""
        return max((place_of(name)[0] for name in self.phases), default=0)


def place_of(phase: str) -> tuple[int, int, str]:
    """Return a phase's key in the order of time; the iteration comes first."""
    words = phase.split(" ")
    number = words[1] if len(words) > 1 else ""
    return int(number) if number.isdecimal() else 0, _ORDER.get(words[-1], len(_ORDER)), phase


def trial_figures(result: ProbeResult, size: int | None) -> dict[int, TrialFigures]:
    """Return the figures of the trials that a baseline keeps, by micro-batch.

    Args:
        result: What the probe found.
        size: Micro-batch whose memory was asked for; None for the largest that fits.
    """
    first = next((trial.micro_batch for trial in result.trials if trial.outcome is Outcome.FITS), 0)
    sizes = sorted({first, size or result.micro_batch.maximum})
    found = {one: _trial_at(one, result) for one in sizes}
    return {one: _figures(trial, result) for one, trial in found.items() if trial is not None}


def _trial_at(size: int, result: ProbeResult) -> Trial | None:
    """Return the first trial at a size that fits, with all memory: later ones may have had more accumulation steps."""
    fitting = [trial for trial in result.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    most = max((trial.allowed_bytes for trial in fitting), default=0)
    return next((trial for trial in fitting if trial.allowed_bytes == most and trial.phases), None)


def _figures(trial: Trial, result: ProbeResult) -> TrialFigures:
    phases: dict[str, int] = {}
    for phase in trial.phases:
        name = f"iteration {phase.iteration} {phase.phase.value}"
        phases[name] = max(phases.get(name, 0), phase.peak_allocated_bytes)
    is_whole = result.micro_batch.limited_by == "target" and trial.micro_batch == result.micro_batch.maximum
    is_told = result.command_plan is None or accumulates(result.command_plan.templates)
    accumulated = is_told and result.accumulation is not None
    return TrialFigures(
        micro_batch=trial.micro_batch,
        micro_steps=1 if is_whole or not accumulated else 2,
        peak_allocated_bytes=trial.peak_allocated_bytes or 0,
        peak_reserved_bytes=trial.peak_reserved_bytes or 0,
        phases=phases,
    )


def _mode_of(variant: Variant | None) -> str | None:
    """Return what is done with a model besides training it, in words; None where it is trained alone."""
    if variant is None:
        return None
    if (tokens := variant.generation) is not None:
        return f"generate {tokens.prompt_tokens} + {tokens.new_tokens} tokens, {tokens.cache} cache"
    if variant.evaluation is not None:
        return f"train, evaluation of {variant.evaluation.micro_batch or 'as many'} between steps"
    return None if variant.mode == "train" else variant.mode


MOST_MODULES: Final = 400
"""Figures by module that are kept, the largest; a model of thousands of unlike modules would bury what counts."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Circumstances of figures besides the user's code; a comparison says where they differ.

    Attributes:
        torch: Version of torch; None where nobody said.
        device: `cuda` (a real GPU), `null` or `trace`.
        card: As PyTorch prints it.
        capacity_bytes: Bytes that PyTorch may take from the device.
        precision: `fp32`, `bf16` or `fp16`.
        optimizer: Name of the optimizer that ran.
        target_batch: Samples per optimizer step over all devices; None where nothing fits.
        world_size: Devices that share it; None where nothing fits.
        rank: The rank that limits the answer, its world and its mesh; None where no rank ran alone.
        axes: Sizes of a file besides the batch, such as `context 512`; None for the file's own.
        mode: What is done with the model besides training it, such as `eval`; None where it is trained alone.
    """

    torch: str | None
    device: str
    card: str
    capacity_bytes: int
    precision: str
    optimizer: str
    target_batch: int | None
    world_size: int | None
    rank: str | None = field(default=None, metadata=ADDED_LATER)
    axes: str | None = field(default=None, metadata=ADDED_LATER)
    mode: str | None = field(default=None, metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory at one micro-batch.

    Attributes:
        micro_batch: Size that was run.
        micro_steps: Micro-batches in each optimizer step; above 1 gradients stay alive during a forward.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        peak_phase: When most bytes were in live tensors, such as `iteration 2 backward`.
        phases: What memory is made of at the peak of each phase, such as `iteration 2 backward`; a phase's sizes sum to
            its most bytes in live tensors.
        categories: Most bytes that each category held at any moment of its own. At the peak alone they would be no
            stable figures: where one percent moves the peak from the optimizer step to backward, the activations of
            that moment go from nothing to everything.
        modules: Bytes by category and module at that moment; None as a module is what no module accounts for.
    """

    micro_batch: int
    micro_steps: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_phase: str
    phases: dict[str, dict[Category, int]]
    categories: dict[Category, int]
    modules: dict[Category, dict[str | None, int]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one entry.

    Attributes:
        circumstances: What the figures depend on.
        maximum: Largest micro-batch that fits; 0 where none does.
        limited_by: What ended the search: `memory`, `target` or `limit`.
        accumulation_steps: Steps that reach the target batch on each device; None where nothing fits.
        memory: Memory at one micro-batch; None where it could not be recorded, of a command, and of a trace.
        is_command: Whether a command was probed, and not a file.
        trials: Of a command and of a trace, memory by phase at some micro-batches; none where nothing fits.
    """

    circumstances: Circumstances
    maximum: int
    limited_by: Literal["memory", "target", "limit"]
    accumulation_steps: int | None
    memory: MemoryFigures | None
    is_command: bool = False
    trials: dict[int, TrialFigures] = field(default_factory=dict)

    @property
    def profiled_micro_batch(self) -> int | None:
        """Size at which memory was recorded, the largest of several; None where it could not be."""
        return max(self.trials, default=None) if self.memory is None else self.memory.micro_batch


@dataclass(frozen=True, slots=True)
class Baseline:
    """Contents of a baseline file.

    Attributes:
        entries: Figures by the entry's name.
    """

    entries: Mapping[str, Figures]


def figures_of(result: ProbeResult, versions: Mapping[str, str] | None = None, size: int | None = None) -> Figures:
    """Return the figures of a probe that a baseline keeps.

    Args:
        result: What the probe found.
        versions: Version by name, of what answered.
        size: Micro-batch whose memory was asked for; None for the largest that fits.
    """
    plan = result.accumulation
    return Figures(
        circumstances=Circumstances(
            torch=(versions or {}).get("torch"),
            device=result.device.kind,
            card=result.device.name,
            capacity_bytes=result.capacity_bytes,
            precision=result.precision,
            optimizer=result.optimizer,
            target_batch=plan.target_batch if plan else None,
            world_size=plan.world_size if plan else None,
            rank=_rank_of(result),
            axes=_axes_of(result),
            mode=_mode_of(result.variant),
        ),
        maximum=result.micro_batch.maximum,
        limited_by=result.micro_batch.limited_by,
        accumulation_steps=plan.steps if plan else None,
        memory=None if result.memory is None else memory_figures(result.memory),
        is_command=result.command_plan is not None,
        trials=trial_figures(result, size)
        if (result.command_plan is not None or result.device.kind == "trace")
        else {},
    )


def _rank_of(result: ProbeResult) -> str | None:
    alone = result.variant.lone_rank if result.variant else None
    if alone is None:
        return None if result.limited_by_rank is None else f"rank {result.limited_by_rank}"
    return ", ".join(filter(None, (f"rank {alone.rank} of {alone.world_size}", alone.mesh, alone.parallel)))


def _axes_of(result: ProbeResult) -> str | None:
    axes = result.variant.axes if result.variant else ()
    return ", ".join(f"{axis.name} {axis.size}" for axis in axes) or None


def memory_figures(memory: StepMemory) -> MemoryFigures:
    """Return the figures of the memory at one micro-batch."""
    found: dict[Category, int] = {}
    for part in memory.category_peaks:
        found[part.category] = found.get(part.category, 0) + part.allocated_bytes
    return MemoryFigures(
        micro_batch=memory.micro_batch,
        micro_steps=memory.micro_steps,
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        peak_phase=_phase_name(memory.peak_iteration, memory.peak_phase),
        phases=_by_phase(memory.phases),
        categories=found,
        modules=_by_module(memory.category_peaks),
    )


def _phase_name(iteration: int, phase: PhaseName) -> str:
    return f"iteration {iteration} {phase.value}"


def _by_phase(phases: Iterable[PhaseMemory]) -> dict[str, dict[Category, int]]:
    """Return the categories of each phase's peak: of its highest micro-step, and of equal ones the first."""
    found: dict[str, dict[Category, int]] = {}
    for phase in phases:
        name = _phase_name(phase.iteration, phase.phase)
        if sum(phase.peak_categories) > sum(found.get(name, {}).values()):
            found[name] = {part: size for part, size in zip(Category, phase.peak_categories, strict=True) if size}
    return found


def _by_module(rows: Iterable[ModuleBytes]) -> dict[Category, dict[str | None, int]]:
    kept = sorted(rows, key=lambda part: (-part.allocated_bytes, part.module or "", part.category))[:MOST_MODULES]
    found: dict[Category, dict[str | None, int]] = {}
    for part in kept:
        modules = found.setdefault(part.category, {})
        modules[part.module] = modules.get(part.module, 0) + part.allocated_bytes
    return found
