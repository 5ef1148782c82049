"""The sentences of a probe's report: the answer, memory by phase and by module.

All text here is plain: no colour, no markup. Text that users control is not part of these sentences.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.report.inference import inference_rows, mode_words
from oomdoctor.report.plain_text import CATEGORY_WORDS, percent, visible
from oomdoctor.report.probe import throughput
from oomdoctor.report.probe.ranks import nccl
from oomdoctor.results import Category, Outcome, PhaseName
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oomdoctor.results import (
        LeastMemory,
        ModuleBytes,
        ProbeResult,
        StepMemory,
        Trial,
    )
    from oomdoctor.results.variant import Mode


OUTCOME_NAMES = {
    Outcome.FITS: "fits",
    Outcome.OOM: "out of memory",
    Outcome.LIMIT: "size limit",
    Outcome.FAILED: "failed",
}
"""How a trial ended, as a cell of a table."""

OUTCOME_WORDS = {
    Outcome.FITS: "fits",
    Outcome.OOM: "ran out of memory",
    Outcome.LIMIT: "met a size limit",
    Outcome.FAILED: "failed",
}
"""How a trial ended, as the end of a sentence that begins with its size."""

HOW_KNOWN = {
    "cuda": "measured on this GPU",
    "null": "run on a null GPU: PyTorch's CUDA code without the arithmetic",
    "trace": "traced: allocations replayed through a simulated allocator",
}
"""Where the numbers come from, by kind of device."""

UNSTABLE = "the memory of other processes moved during the probe, so another run may answer differently"


# --- the answer ------------------------------------------------------------------------------------------------------


def headline(result: ProbeResult) -> str:
    """Return the answer in one line, such as `micro-batch 19 fits; 20 runs out in backward, iteration 2`."""
    answer = result.micro_batch
    if answer.maximum == 0:
        return _nothing_fits(result)
    fits = f"{_SIZES[result.mode]} {answer.maximum} {_fits(result)}"
    if answer.limited_by == "target":
        return f"{fits}; {_target_is_met(result)}"
    return f"{fits}; {answer.maximum + 1} {_verdict(result, failing_trial(result))}"


_SIZES: Final[Mapping[Mode, str]] = {
    "train": "micro-batch",
    "eval": "an evaluation batch of",
    "generate": "generating a batch of",
}
"""What the size of the answer is one of, in the headline."""


def _fits(result: ProbeResult) -> str:
    """Return what fits: training, or a command's first optimizer step alone, before the optimizer's state exists."""
    at_maximum = [trial for trial in result.trials if trial.micro_batch == result.micro_batch.maximum]
    backwards = [phase for trial in at_maximum for phase in trial.phases if phase.phase is PhaseName.BACKWARD]
    iterations = {phase.iteration for phase in backwards}
    is_first_alone = result.command_plan is not None and iterations == {1}
    return "fits one optimizer step, and the second may not fit" if is_first_alone else "fits"


def failing_trial(result: ProbeResult) -> Trial | None:
    """Return the trial that ended the search: one above the maximum; where nothing fits, the smallest that ran out."""
    failed = [trial for trial in result.trials if trial.outcome is not Outcome.FITS]
    if result.micro_batch.maximum == 0:
        # A size that failed for another reason, such as one sample under batch norm, is not what does not fit.
        ran_out = [trial for trial in failed if trial.outcome is not Outcome.FAILED]
        return min(ran_out or failed, key=lambda trial: trial.micro_batch, default=None)
    # A size may also have been run with the headroom withheld; its failure there says nothing about the maximum.
    successors = [trial for trial in failed if trial.micro_batch == result.micro_batch.maximum + 1]
    return max(successors, key=lambda trial: trial.allowed_bytes, default=None)


def shortfall(result: ProbeResult) -> str | None:
    """Return the size of the weights against the capacity where nothing fits; None where not known, or not to blame."""
    ran_out = failing_trial(result)
    if result.micro_batch.maximum or result.weights_bytes is None or (ran_out and ran_out.evaluation_peak_bytes):
        return None
    excess = result.weights_bytes - result.capacity_bytes
    weights, capacity = format_size(result.weights_bytes), format_size(result.capacity_bytes)
    if excess > 0:
        return f"the weights alone exceed the capacity by {format_size(excess)} ({weights} into {capacity})"
    return f"the weights take {weights} of the capacity's {capacity}"


def warnings(result: ProbeResult) -> list[str]:
    """Return the warnings about the answer."""
    return list(result.warnings) if result.stable else [UNSTABLE, *result.warnings]


def answer_rows(result: ProbeResult) -> list[tuple[str, str]]:
    """Return the parts of the answer below the headline: (name, sentence)."""
    answer = result.micro_batch
    if not answer.maximum:
        return []
    rows = [("recommended", _recommendation(result))]
    if (least := result.least_memory) is not None:
        rows.append(("its memory", _least_memory(least)))
    rows.extend(inference_rows(result))
    if (answer.plain_maximum or 0) > answer.maximum:
        text = f"{answer.plain_maximum} fits where nothing is accumulated: no gradients stay alive during the forward"
        rows.append(("plain step", text))
    if result.target_samples is None and result.accumulation is None and result.mode == "train":
        rows.append(
            ("steps", "of one micro-batch; `--target-batch` plans the accumulation that reaches a larger batch")
        )
    if result.throughput is not None:
        rows.append(("fastest", throughput.answer(result.throughput)))
    if answer.smallest > 1:
        rows.append(("smallest", f"{answer.smallest}, since the model refuses smaller micro-batches"))
    if result.weights_bytes is not None:
        rows.append(("weights", format_size(result.weights_bytes)))
    if result.nccl is not None:
        rows.append(("NCCL", nccl(result.nccl)))
    return rows


def question(result: ProbeResult) -> list[str]:
    """Return what was asked about, without what is empty: the target, its sizes, the precision and the optimizer."""
    sizes = result.variant.sizes if result.variant else {}
    return [
        part
        for part in (
            result.target,
            *(f"{name} {size}" for name, size in sizes.items()),
            *(mode_words(result.variant) if result.variant else ()),
            result.precision,
            result.optimizer,
            f"`nn.DataParallel` over {result.variant.devices} devices"
            if result.variant and result.variant.devices > 1
            else "",
        )
        if part
    ]


_FAR: Final = 0.85
"""A recommended size below this part of the maximum is smaller than the headroom alone makes it."""


def _recommendation(result: ProbeResult) -> str:
    recommended, free = result.micro_batch.recommended, percent(result.headroom)
    if recommended == 0:
        return f"none: no tested size leaves {free} of the capacity free without PyTorch giving back its cache"
    text = f"{recommended}, which leaves at least {free} of the capacity free"
    if recommended < _FAR * result.micro_batch.maximum and result.micro_batch.limited_by == "memory":
        # Memory lies in pieces: what is reserved and in no tensor is what a larger size would have to have given back.
        text += "; to run larger ones, PyTorch is likely to give back its cache and ask again, which takes time"
    return text


def _least_memory(least: LeastMemory) -> str:
    peak, runs = format_size(least.peak_reserved_bytes), format_size(least.least_bytes)
    if least.least_bytes == least.peak_reserved_bytes:
        return f"{peak} reserved; it ran in no less, although cuDNN's workspaces are optional"
    return f"{peak} reserved; {runs} is enough, since cuDNN's workspaces are optional"


def _nothing_fits(result: ProbeResult) -> str:
    trial = failing_trial(result)
    # A model that cannot even be placed leaves no trial.
    if trial is None or _died_loading(trial):
        return "nothing fits; loading the model runs out of memory"
    return f"nothing fits; micro-batch {trial.micro_batch} {_verdict(result, trial)}"


def _died_loading(trial: Trial) -> bool:
    return bool(trial.phases) and trial.phases[-1].phase is PhaseName.LOAD


def _verdict(result: ProbeResult, trial: Trial | None) -> str:
    is_limit = result.micro_batch.limited_by == "limit" if trial is None else trial.outcome is Outcome.LIMIT
    verb = "meets a size limit that is not memory" if is_limit else "runs out"
    where = "" if trial is None else _where(trial)
    if where:
        return f"{verb}{',' if is_limit else ''} {where}"
    return verb if is_limit else "runs out of memory"


def _where(trial: Trial) -> str:
    if not trial.phases:
        return ""
    last = trial.phases[-1]
    if last.phase is PhaseName.LOAD:
        return "while the model is loaded"
    phase = "the optimizer step" if last.phase is PhaseName.OPTIMIZER else last.phase.value
    timing = ", while Inductor times kernels" if trial.timing_bytes and trial.outcome is Outcome.OOM else ""
    return f"in {phase}, iteration {last.iteration}{timing}"


def _target_is_met(result: ProbeResult) -> str:
    plan = result.accumulation
    if plan is None:
        return "larger sizes were not tried"
    if plan.world_size > 1:
        return f"a target batch of {plan.target_batch} on {plan.world_size} devices needs no more"
    return f"a target batch of {plan.target_batch} needs no more"


# --- where it ran ----------------------------------------------------------------------------------------------------


def capacity(result: ProbeResult) -> str:
    """Return the capacity and, where they add up to it, its parts."""
    device, total = result.device, format_size(result.device.total_bytes)
    parts = [f"{total} total"]
    if device.context_bytes:
        source = "measured" if device.kind == "cuda" else "catalogue"
        parts.append(f"{format_size(device.context_bytes)} CUDA context ({source})")
    if device.other_processes_bytes:
        parts.append(f"{format_size(device.other_processes_bytes)} other processes")
    if device.reserve_bytes:
        parts.append(f"{format_size(device.reserve_bytes)} reserved for others")
    taken = (device.context_bytes or 0) + (device.other_processes_bytes or 0) + (device.reserve_bytes or 0)
    if device.total_bytes - taken == result.capacity_bytes and len(parts) > 1:
        return f"{format_size(result.capacity_bytes)} = {' - '.join(parts)}"
    return f"{format_size(result.capacity_bytes)} of {', '.join(parts)}"


# --- trials ----------------------------------------------------------------------------------------------------------


def outcome(result: ProbeResult, trial: Trial) -> str:
    """Return the outcome of a trial with its notes, such as `fits, largest`."""
    return ", ".join([OUTCOME_NAMES[trial.outcome], *_notes(result, trial)])


def _notes(result: ProbeResult, trial: Trial) -> list[str]:
    notes = []
    fits, answer = trial.outcome is Outcome.FITS, result.micro_batch
    if fits and trial.micro_batch == answer.maximum:
        notes.append("largest")
    if fits and trial.micro_batch > answer.maximum:
        notes.append("in a plain step")
    if fits and trial.micro_batch == answer.recommended:
        notes.append("recommended")
    elif trial.allowed_bytes < result.capacity_bytes:
        # That the recommended size ran with less than the capacity goes without saying.
        notes.append(f"with {format_size(trial.allowed_bytes)} allowed")
    if trial.swallowed_ooms:
        notes.append("caught by your code")
    return notes


def phases_title(result: ProbeResult) -> str:
    """Return the title of the memory by phase, such as `Memory by phase at micro-batch 19`."""
    # Loading comes before all trials, so that the phases of one are the end of those of the result.
    matches = [trial for trial in result.trials if trial.phases and result.phases[-len(trial.phases) :] == trial.phases]
    if not matches and not result.micro_batch.maximum:
        return "Memory by phase"
    trial = matches[-1] if matches else None
    size = result.micro_batch.maximum if trial is None else trial.micro_batch
    failed = trial is not None and trial.outcome is not Outcome.FITS
    return f"Memory by phase at micro-batch {size}{', up to the failure' if failed else ''}"


def trials_title(trials: Sequence[Trial]) -> str:
    """Return the number of trials and their seconds in all."""
    seconds = sum(trial.seconds for trial in trials)
    return f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'} in {seconds:.1f} s"


def failure_title(trial: Trial) -> str:
    """Return the title of the error of a trial."""
    if _died_loading(trial):
        return "The error while loading the model"
    return f"The error at micro-batch {trial.micro_batch}"


# --- memory by module -------------------------------------------------------------------------------------------------

_MOST_ROWS: Final = 12
"""Rows of modules in a drawing; smaller modules share the last."""


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or all the small ones.

    Attributes:
        module: Its path; empty for the model itself; None for what no module accounts for.
        others: How many modules are in this row, where it stands for several; else 0.
        parts: Bytes by category, in the order of `Category`.
        total_bytes: Their sum.
        blocks: How many blocks.
    """

    module: str | None
    others: int
    parts: tuple[tuple[Category, int], ...]
    total_bytes: int
    blocks: int


def module_rows(modules: Iterable[ModuleBytes]) -> list[ModuleRow]:
    """Return the largest modules first, and last the rest of them, so that the rows sum to the whole."""
    by_module: dict[str | None, list[ModuleBytes]] = defaultdict(list)
    for found in modules:
        by_module[found.module].append(found)
    made = sorted((_row(name, 0, found) for name, found in by_module.items()), key=lambda row: -row.total_bytes)
    # A rest of one is a row of its own.
    if len(made) <= _MOST_ROWS + 1:
        return made
    rest = [found for row in made[_MOST_ROWS:] for found in by_module[row.module]]
    return [*made[:_MOST_ROWS], _row(None, len(made) - _MOST_ROWS, rest)]


def _row(name: str | None, others: int, found: Sequence[ModuleBytes]) -> ModuleRow:
    sizes = [(kind, sum(part.allocated_bytes for part in found if part.category is kind)) for kind in Category]
    parts = tuple((category, size) for category, size in sizes if size)
    return ModuleRow(name, others, parts, sum(size for _, size in sizes), sum(part.blocks for part in found))


MOST_MODULES: Final = 5
"""Modules that are shown; the HTML page has more, the JSON all."""

_LONGEST_NAME: Final = 120


def memory_title(found: StepMemory) -> str:
    """Return the title of a step's memory, such as `Memory at micro-batch 19`."""
    return f"Memory at micro-batch {found.micro_batch}"


def memory_peak(found: StepMemory) -> str:
    """Return the peak, such as `22.62 GiB at the peak, in backward, iteration 2; 22.83 GiB reserved`."""
    phase = "the optimizer step" if found.peak_phase is PhaseName.OPTIMIZER else found.peak_phase.value
    allocated, reserved = format_size(found.peak_allocated_bytes), format_size(found.peak_reserved_bytes)
    return f"{allocated} at the peak, in {phase}, iteration {found.peak_iteration}; {reserved} reserved"


def memory_categories(found: StepMemory) -> list[tuple[str, int]]:
    """Return categories that hold anything at the peak, and their bytes, largest first."""
    held = [(CATEGORY_WORDS[part.category], part.allocated_bytes) for part in found.categories if part.allocated_bytes]
    return sorted(held, key=lambda part: -part[1])


def memory_modules(found: StepMemory) -> list[tuple[ModuleRow, str]]:
    """Return the largest modules at the peak, and what each holds most."""
    return [(row, _mostly(row)) for row in module_rows(found.modules)[:MOST_MODULES] if not row.others]


def module_name(row: ModuleRow) -> str:
    """Return a module's path, or words for the model itself, for the smaller ones and for all outside of modules."""
    if row.others:
        return f"{row.others} smaller modules"
    if row.module is None:
        return "outside the modules"
    return visible(row.module, _LONGEST_NAME) or "the model itself"


def _mostly(row: ModuleRow) -> str:
    """Return the category that most of a module's memory is of; empty where it holds none."""
    largest = max(row.parts, key=lambda part: part[1], default=None)
    return "" if largest is None else CATEGORY_WORDS[largest[0]]
