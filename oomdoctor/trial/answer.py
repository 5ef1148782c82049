"""The answer of a probe: from what the trials showed to the result and the document that reports render."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor import __version__
from oomdoctor.agent.unknown_reads import bound_warnings, describe_reads
from oomdoctor.engines.catalogue import all_cards
from oomdoctor.engines.cudnn_library import PROBLEM, cudnn_version
from oomdoctor.engines.installed import find_torch
from oomdoctor.errors import EXIT_GATE, EXIT_INTERRUPTED, EXIT_NO_ANSWER, EXIT_OK
from oomdoctor.results import Device, MicroBatch, Outcome, ProbeDocument, ProbeResult, Reason, Trial
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.agent.messages import UnknownRead
    from oomdoctor.engines.choice import Engine
    from oomdoctor.engines.monitor import OtherProcesses
    from oomdoctor.remedies.file_edit import AppliedChange
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Accumulation, EvaluationMemory, Guidance, LeastMemory, StepMemory
    from oomdoctor.results.document import ProbeStatus
    from oomdoctor.results.prescribe import StepCost
    from oomdoctor.results.throughput import Throughput
    from oomdoctor.search.bracket import SearchResult
    from oomdoctor.search.trial_source import TrialSource
    from oomdoctor.trial.dependencies import Dependencies
    from oomdoctor.trial.worker_answers import LoadedTarget


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """A finished probe.

    Attributes:
        result: What it found.
        versions: Version by name, of what answered.
        dependencies: What the target used.
        changes: What the variant changed in the target.
        host_bytes: Bytes that a forward at the maximum moves to the host, where activations are offloaded.
        cost: What a step computes and touches; None where that was not asked for or could not be counted.
        is_whole: False where it was interrupted between its answer and its end.
    """

    result: ProbeResult
    versions: dict[str, str]
    dependencies: Dependencies
    changes: tuple[AppliedChange, ...] = ()
    host_bytes: int = 0
    cost: StepCost | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class DryRun:
    """A target that was loaded and tried once.

    Attributes:
        engine: Where it ran, and why there.
        loaded: What the worker said when the model was on the device.
        trial: One trial at the smallest size; None where the model alone does not fit.
    """

    engine: Engine
    loaded: LoadedTarget
    trial: Trial | None


@dataclass(frozen=True, slots=True)
class ProfiledAnswer:
    """Profile of a probe's memory, with reasons and warnings for the result.

    Attributes:
        memory: What it is made of; None where that could not be had, or nothing fits.
        reasons: Where it was had from.
        warnings: What it lacks, or why there is none.
    """

    memory: StepMemory | None = None
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What follows from the maximum.

    Attributes:
        recommended: Largest tested size that fits with the headroom withheld.
        plan: How to reach the target with sizes that were run; None where nothing fits, or there is no target.
        recommended_plan: The same with sizes up to the recommended one; None where no size is recommended as well.
        plain_maximum: Largest size of a step that accumulates nothing; None where it was not looked for.
    """

    recommended: int = 0
    plan: Accumulation | None = None
    recommended_plan: Accumulation | None = None
    plain_maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a probe, from which its result is built.

    Attributes:
        loaded: What the worker said when the model was on the device.
        search: How the search ended; None where the model alone does not fit.
        answer: What follows from the search; None where the model alone does not fit.
        trials: Every trial in order.
        recorded: What memory is made of.
        moved: Whether other processes' memory moved meanwhile; None where nobody can say.
        guidance: What the guide said; None where there was none.
        least_memory: Memory in which the recommended size still runs; None where that was not looked for.
        throughput: How fast each of several sizes trains; None where that was not asked for.
        evaluation: What an evaluation between the training steps takes; None where none was asked for.
        cost: What a step computes and touches; None where that was not asked for or could not be counted.
    """

    loaded: LoadedTarget
    search: SearchResult | None
    answer: Answer | None
    trials: tuple[Trial, ...]
    recorded: ProfiledAnswer
    moved: bool | None = None
    guidance: Guidance | None = None
    least_memory: LeastMemory | None = None
    throughput: Throughput | None = None
    evaluation: EvaluationMemory | None = None
    cost: StepCost | None = None

    def interrupted(self) -> Findings:
        """Return them with the warning that what a probe looks for after its answer may be missing."""
        return replace(self, recorded=replace(self.recorded, warnings=(_INTERRUPTED, *self.recorded.warnings)))


def build_result(
    request: ProbeRequest, engine: Engine, source: TrialSource, others: OtherProcesses, findings: Findings
) -> ProbeResult:
    """Put the result together."""
    loaded, search, answer = findings.loaded, findings.search, findings.answer or Answer()
    maximum = search.maximum if search else 0
    # Return the phases at the maximum, or, where nothing fits, those of the trial that got furthest.
    at_maximum = [trial for trial in findings.trials if trial.micro_batch == maximum and trial.outcome is Outcome.FITS]
    shown = at_maximum or sorted(findings.trials, key=lambda trial: len(trial.phases))
    return ProbeResult(
        target=request.target,
        precision=OWN_PRECISION if request.command else request.variant.precision,
        optimizer=source.notes.optimizer_name,
        micro_batch=MicroBatch(
            maximum=maximum,
            recommended=answer.recommended,
            limited_by=search.limited_by if search else "memory",
            smallest=search.smallest if search else 1,
            plain_maximum=answer.plain_maximum,
        ),
        accumulation=answer.plan,
        capacity_bytes=source.capacity_bytes,
        headroom=request.headroom,
        weights_bytes=loaded.weights_bytes,
        device=_device(engine, loaded, others, request.reserve_bytes),
        stable=not findings.moved,
        trials=findings.trials,
        phases=(*loaded.phases, *(shown[-1].phases if shown else ())),
        reasons=(
            *_engine_reasons(engine, source, "command" if request.command else "file"),
            *_measured_reasons(engine, loaded),
            *choice_reasons(loaded),
            optimizer_reason(request, loaded),
            *findings.recorded.reasons,
            *_timing_reasons(findings.trials, maximum),
            *_guide_reasons(findings.guidance, maximum),
        ),
        warnings=tuple(_warnings(request, engine, source, findings)),
        memory=findings.recorded.memory,
        guide=findings.guidance,
        variant=None if request.command else request.variant,
        recommended_accumulation=answer.recommended_plan,
        target_samples=request.target_batch,
        least_memory=findings.least_memory,
        throughput=findings.throughput,
        generation=source.notes.generation,
        evaluation=findings.evaluation,
    )


def _device(engine: Engine, loaded: LoadedTarget, others: OtherProcesses, reserve_bytes: int) -> Device:
    context = engine.card.context_bytes if engine.card else loaded.used_before_bytes - (others.before_bytes or 0)
    return Device(
        reserve_bytes=reserve_bytes or None,
        kind=engine.kind,
        name=loaded.name,
        compute_capability=loaded.compute_capability,
        total_bytes=loaded.total_bytes,
        context_bytes=max(0, context),
        other_processes_bytes=others.before_bytes,
    )


def _engine_reasons(engine: Engine, source: TrialSource, code: str) -> list[Reason]:
    """Return the engine's reasons, with what the target's code sets itself in the place of what it replaces."""
    notes, found = source.notes, list(engine.reasons)
    for name, value in (notes.settings or {}).items():
        found = [reason for reason in found if not reason.text.startswith(f"`{name}=")]
        if value:
            found.append(Reason("allocator", f"`{name}={value}` is set by the target's file and was used"))
    if notes.memory_fraction < 1:
        call = f"`torch.cuda.set_per_process_memory_fraction({notes.memory_fraction:g})`"
        found.append(
            Reason("capacity", f"{format_size(source.capacity_bytes)}, as {call} in the target's {code} allows")
        )
    return found


def workspace_reason(environment: Mapping[str, str]) -> Reason:
    """Return whether convolutions' workspaces are counted, in the environment of a null GPU or an emulated one."""
    version = cudnn_version(environment)
    if version is None:
        return Reason("cudnn_workspace", f"0 bytes: {environment.get(PROBLEM) or _without_cudnn()}")
    return Reason("cudnn_workspace", f"counted: cuDNN {version} was asked what it takes on this card")


def _without_cudnn() -> str:
    """Return why no cuDNN is asked; beside a CUDA build there is no other than the one that came with it."""
    why = "only cuDNN 9.8 or newer tells them without a GPU, and it is not installed beside this PyTorch"
    build = find_torch()
    return why if build is None or build.cuda else f"{why}; `pip install 'oomdoctor[cudnn]'` brings it (1.6 GB)"


def _measured_reasons(engine: Engine, loaded: LoadedTarget) -> list[Reason]:
    if engine.kind == "null":
        return [Reason("peaks", _NULL_PEAKS), workspace_reason(engine.environment)]
    if engine.kind == "trace":
        return [Reason("peaks", _TRACED_PEAKS), workspace_reason(engine.environment)]
    return [
        Reason("capacity", f"measured on {loaded.name}: what was free, and what PyTorch holds"),
        Reason("context", "measured: in use on the GPU before the model, less other processes"),
        Reason("peaks", "measured on this GPU by PyTorch's caching allocator"),
    ]


def _timing_reasons(trials: Sequence[Trial], maximum: int) -> list[Reason]:
    """Return that timing kernels decided what fits, or gave the peak at the maximum; nothing where it did not."""
    deciding = [trial for trial in trials if trial.micro_batch in (maximum, maximum + 1) and trial.timing_bytes]
    if not deciding:
        return []
    last = max(deciding, key=lambda trial: trial.micro_batch)
    how = "runs out" if last.outcome is Outcome.OOM else "is at its peak"
    text = (
        f"micro-batch {last.micro_batch} {how} where Inductor times kernels in the first steps, with a buffer of "
        f"{format_size(last.timing_bytes)}, the size of the card's L2 cache; a later run that finds the choices in "
        "Inductor's cache needs less"
    )
    return [Reason("kernel_timing", text)]


def _guide_reasons(guidance: Guidance | None, maximum: int) -> list[Reason]:
    """Return the reason of the warm start; that it made no guess changes no answer."""
    if guidance is None:
        return []
    if not guidance.guesses:
        return [Reason("guide", f"the trace engine made no prediction: {guidance.problem}")]
    said = ", then ".join(map(str, guidance.guesses))
    verdict = "which the trials confirmed" if guidance.guesses[-1] == maximum else f"and the trials found {maximum}"
    return [Reason("guide", f"the trace engine predicted {said}, {verdict}")]


def choice_reasons(loaded: LoadedTarget) -> list[Reason]:
    """Return what a generated file has chosen, of a target that a hub knows by name."""
    return [Reason(name, text) for name, text in loaded.found.items() if name not in _FUNCTIONS]


def optimizer_reason(request: ProbeRequest, loaded: LoadedTarget) -> Reason:
    """Return who chose the optimizer; the file's own goes before `--optimizer`, because training will run it.

    An evaluation has no optimizer, and the reason is that of its step.
    """
    if request.command is not None:
        return Reason("optimizer", "the command's own")
    if request.variant.mode == "generate":
        return Reason("generation", _GENERATION)
    if request.variant.mode == "eval":
        return Reason("evaluation_step", loaded.found.get("evaluation_step", _OWN_EVALUATION))
    found = loaded.found["build_optimizer"]
    if not found.startswith("`"):
        found = f"`--optimizer {request.variant.optimizer}`" if request.variant.optimizer else found
    elif request.variant.optimizer:
        found = f"{found}, which goes before `--optimizer {request.variant.optimizer}`"
    return Reason("optimizer", found)


_FUNCTIONS = ("build_model", "make_batch", "training_step", "build_optimizer", "parallelize", "evaluation_step")
"""The functions of a target's file."""

_OWN_EVALUATION = "default: the model in evaluation mode, called as in training but without gradients"

_GENERATION = (
    "a loop as `generate()` of transformers has it, without what decides by values: prompts of one length, each new "
    "token the likeliest, and no sample ends early"
)

OWN_PRECISION = "precision of its own"
"""Name of a command's precision, which only the command itself knows."""

_INTERRUPTED = (
    "the probe was interrupted when it had its answer: what it does after that is missing in part or in whole, "
    "such as what memory is made of, and whether steps beyond a trial's take more"
)
_NULL_PEAKS = "counted by PyTorch's caching allocator while the step ran on the null GPU"
_TRACED_PEAKS = (
    "counted by a simulation of PyTorch's caching allocator, from what each operator of the step would allocate"
)
_NATIVE_BF16 = 8.0
"""Compute capability from which bf16 is native."""


def _warnings(request: ProbeRequest, engine: Engine, source: TrialSource, findings: Findings) -> list[str]:
    """Return warnings about the answer, those about the model first and then those about the machine."""
    found = list(findings.search.notes) if findings.search else [_why_not_placed(findings.loaded)]
    maximum = findings.search.maximum if findings.search else 0
    plan = findings.answer.plan if findings.answer else None
    if findings.search and plan and min(plan.micro_batches) < findings.search.smallest:
        found.append(f"the plan has micro-batches smaller than {findings.search.smallest}, which the model refuses")
    if plan and findings.search and plan.steps > -(-sum(plan.micro_batches) // maximum):
        found.append("sizes a little below the maximum do not fit, so the plan keeps to smaller ones that were run")
    swallowed = [str(trial.micro_batch) for trial in findings.trials if trial.swallowed_ooms]
    if swallowed:
        sizes = ", ".join(swallowed)
        found.append(f"the target's code caught out-of-memory errors itself at micro-batch {sizes}; they count")
    if not source.notes.loss_is_finite:
        found.append("the loss was NaN or infinite; memory does not depend on it, training does")
    step = "step" if request.variant.mode == "train" else "batch"
    if source.notes.growth and (grown := source.notes.growth.warning(step)):
        found.insert(0, grown)
    if (graph := source.notes.graph) is not None:
        found.insert(0, graph.warning())
    if (too_large := source.notes.too_large) is not None:
        found[:0] = too_large.warnings()
    return [*found, *_device_warnings(request, engine, source, findings), *findings.recorded.warnings]


def _device_warnings(request: ProbeRequest, engine: Engine, source: TrialSource, findings: Findings) -> list[str]:
    loaded, found = findings.loaded, []
    if not loaded.has_kernels:
        versions = loaded.versions
        found.append(
            f"torch {versions['torch']} was not built for compute capability {loaded.compute_capability}, so it would "
            f"not run on {loaded.name}; an older one would, built for an older CUDA than {versions['cuda']}"
        )
    if request.variant.precision == "bf16" and float(loaded.compute_capability) < _NATIVE_BF16:
        found.append(
            f"compute capability {loaded.compute_capability} emulates bf16; `--precision fp16` may suit it better"
        )
        if engine.kind == "trace":
            found.append("on this card a trace of bf16 is too low; `--engine null` runs what such a card runs instead")
    if request.command is None:
        found += bound_warnings(source.notes.unknown_reads)
    if source.notes.zeros_read and request.command is None:  # a command reads back what it logs
        found.append(_zeros_read(source.notes.zeros_read, source.notes.unknown_reads, engine))
    if source.notes.unknown_calls and engine.kind == "null":
        names = ", ".join(source.notes.unknown_calls)
        found.append(f"the null GPU does not serve {names}: memory there is not counted")
    found += [_ASSUMED[name] for name in source.notes.assumptions]
    if findings.moved is None:
        found.append("the memory of other processes on this GPU could not be read; if it changed, so may the answer")
    return found


_ASSUMED = {
    "cuda-graphs": "a CUDA graph holds memory beside PyTorch's pools that a GPU alone can tell: it is not counted",
    "cufft": (
        "the work areas of Fourier transforms are counted as cuFFT's documentation names the least; lengths with prime "
        "factors above 7 may take up to eight times as much"
    ),
    "cusolver": (
        "the work areas of cuSOLVER (SVD, eigenvalues, QR, Cholesky) are known on a GPU alone and count as 0; training "
        "may need more while it runs"
    ),
    "host-room": (
        "this host has no room for the weights of some sizes: those models were built on the meta device, where "
        "tensors have no values"
    ),
}


def _zeros_read(count: int, reads: Sequence[UnknownRead], engine: Engine) -> str:
    where = "in a trace" if engine.kind == "trace" else "on a null GPU"
    times = "once" if count == 1 else f"{count} times"
    told = [read for read in reads if read.effect != "check"]
    places = f": {describe_reads(told)};" if told else ", and"
    return (
        f"the step read data back from the GPU {times} in a trial{places} {where} that is zeros: memory that "
        "depends on it (boolean masks, `nonzero`, `.item()` in a condition) is not counted, and training may need more"
    )


def _why_not_placed(loaded: LoadedTarget) -> str:
    """Say what the weights lack: a card that has room for them, or room for the blocks that PyTorch takes for them."""
    weights_bytes = loaded.weights_bytes or 0
    if weights_bytes <= loaded.capacity_bytes:
        return (
            f"the weights take {format_size(weights_bytes)}, and PyTorch takes memory for them in blocks of 2 MiB and "
            f"more, for which {format_size(loaded.capacity_bytes)} have no room"
        )
    cards = [card for card in all_cards() if card.capacity_bytes > weights_bytes]
    if not cards:
        return "the weights alone do not fit, and no card of the catalogue has room for them"
    smallest = min(cards, key=lambda card: card.capacity_bytes)
    size = format_size(smallest.capacity_bytes)
    return f"the weights alone do not fit; the smallest known card where they would is `{smallest.key}` ({size})"


def document_of(found: ProbeRun) -> ProbeDocument:
    """Return the document of a probe, with its status and exit code."""
    answer = found.result.micro_batch
    status: ProbeStatus = "limited" if answer.limited_by == "limit" else "fits"
    if not found.is_whole:
        status = "interrupted"
    elif not answer.maximum:
        status = "nothing_fits"
    return ProbeDocument(
        command="probe",
        status=status,
        exit_code=_exit_code(found.result) if found.is_whole else EXIT_INTERRUPTED,
        versions={"oomdoctor": __version__, **found.versions},
        result=found.result,
    )


def _exit_code(result: ProbeResult) -> int:
    if not result.micro_batch.maximum:
        return EXIT_GATE
    was_asked_in_vain = result.throughput is not None and result.throughput.fastest is None
    return EXIT_NO_ANSWER if was_asked_in_vain else EXIT_OK
