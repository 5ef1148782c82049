"""Report of a trial's process: everything that was measured, as the last message of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import exception_hooks, null_gpu, oom_errors
from .guard import FAILURES, guarded
from .memory_stats import DevicePeaks
from .messages import ErrorChain, ErrorLink, Measurements
from .phase_meter import BACKWARD, EVALUATION, LOAD, OPTIMIZER, PhaseMemory, PhaseTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .messages import Ending, ProcessDescription
    from .training_hooks import StepCounter
    from .training_phases import PhasePart


class TrialFacts(NamedTuple):
    """Facts that the agent has gathered in a process.

    Attributes:
        steps: Its optimizer steps.
        peaks: Its highest figures; None where CUDA was not initialised.
        parts: Memory from one start of a phase to the next.
        failed: Iterations and phases in which memory ran out.
        describe: Describes the process, where that was asked for.
    """

    steps: StepCounter
    peaks: DevicePeaks | None
    parts: Sequence[PhasePart]
    failed: set[tuple[int, str]]
    describe: Callable[[], ProcessDescription | None]


def measurements(facts: TrialFacts, ending: Ending, *, has_cuda: bool, error: ErrorChain | None) -> Measurements:
    """Return everything that was measured.

    Args:
        facts: Facts that the agent has gathered.
        ending: `steps`, `error` or `exit`; `step` where memory ran out and a step was done all the same.
        has_cuda: Whether CUDA was initialised.
        error: The error that nobody handles.
    """
    steps, peaks = facts.steps, facts.peaks or DevicePeaks()
    used = [part for part in facts.parts if part.allocations or part.start.phase in (LOAD, OPTIMIZER)]
    return Measurements(
        ending=ending,
        steps=steps.done,
        idle_optimizers=len(steps.idle),
        cuda=has_cuda,
        optimizer=steps.optimizer,
        parameter_bytes=steps.parameter_bytes,
        gradient_bytes=steps.gradient_bytes,
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        fixed_bytes=guarded(_fixed_bytes)(used, steps.done),
        alloc_retries=peaks.retries,
        ooms=peaks.ooms,
        training_peak_bytes=_highest(part for part in used if part.start.phase not in (LOAD, EVALUATION)),
        evaluation_peak_bytes=_highest(part for part in used if part.start.phase == EVALUATION),
        phases=_phases(used, facts.failed | (_last_phase(used) if error is not None else set())),
        zeros_read=null_gpu.zeros_read(),
        unknown_calls=tuple(null_gpu.unknown_calls()),
        error=error,
        process=guarded(facts.describe)(),
        failures=tuple(FAILURES),
    )


def _highest(parts: Iterable[PhasePart]) -> int | None:
    return max((part.peak_bytes for part in parts), default=None)


def _last_phase(parts: Sequence[PhasePart]) -> set[tuple[int, str]]:
    """Return the iteration and the phase that an error ended."""
    return {(part.start.iteration, part.start.phase) for part in parts[-1:]}


def _phases(parts: Iterable[PhasePart], failed: set[tuple[int, str]]) -> tuple[PhaseMemory, ...]:
    table: PhaseTable[str, PhaseMemory] = PhaseTable(PhaseMemory)
    for part in parts:
        table.add(part.start.iteration, part.start.phase, part.peak_bytes, part.end_bytes)
    for iteration, phase in failed:
        table.fail(iteration, phase)
    return table.records()


def _fixed_bytes(parts: Sequence[PhasePart], iteration: int) -> int | None:
    """Return the bytes that stay from one micro-step to the next, gradients included where they accumulate.

    The first iteration makes the optimizer's state, so only a later one has all that stays.
    """
    own = [part for part in parts if part.start.iteration == iteration and part.start.phase != EVALUATION]
    backwards = [index for index, part in enumerate(own) if part.start.phase == BACKWARD]
    if iteration < 2 or not backwards:  # noqa: PLR2004 - the second
        return None
    forward = own[backwards[0] + 1 :] if len(backwards) > 1 else own[: backwards[0]]
    return min((part.lowest_bytes for part in forward), default=None)


def error_chain(error: BaseException) -> ErrorChain:
    """Return an error as text: to hold the error itself would hold its frames and all the tensors in them."""
    links = [
        ErrorLink(types=tuple(map(oom_errors.qualified_name, type(link).__mro__)), text=oom_errors.error_text(link))
        for link in oom_errors.walk_chain(error)
    ]
    return ErrorChain(links=tuple(links), traceback=guarded(exception_hooks.full_traceback)(error) or "")
