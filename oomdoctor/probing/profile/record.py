"""Run one trial more and say what memory was made of, or why that cannot be said. Runs in the worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from oomdoctor.probing.profile.blocks import tell
from oomdoctor.probing.profile.heap import UnexplainedError
from oomdoctor.probing.profile.names import named_modules
from oomdoctor.probing.profile.profiled import Profiled
from oomdoctor.probing.profile.recorder import ProfileRecorder
from oomdoctor.probing.profile.summary import summarise
from oomdoctor.probing.trial import run_trial
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from oomdoctor.probing.trial import Setup
    from oomdoctor.results import Trial


@dataclass(frozen=True, slots=True)
class _Way:
    """How closely to watch, and what is said where no closer way works.

    Attributes:
        modules: Whether the modules' forwards are watched.
        graph: Whether the backward's nodes are.
        lack: What is missing without what was left out.
    """

    modules: bool
    graph: bool
    lack: str


_WAYS: Final = (
    _Way(modules=True, graph=True, lack=""),
    _Way(modules=True, graph=False, lack="memory that the backward allocates is of no module"),
    _Way(modules=False, graph=False, lack="memory by module is that of weights, gradients and optimizer state alone"),
)


def profile(
    setup: Setup, micro_batch: int, micro_steps: int, allowed_bytes: int, peak_allocated_bytes: int
) -> Profiled:
    """Record memory at a size.

    Watching must not change what is watched: the peak has to be that of a trial that nobody watches.

    Args:
        setup: The model and how it trains.
        micro_batch: Samples in one forward and backward.
        micro_steps: Micro-batches in each optimizer step.
        allowed_bytes: Most bytes that the allocator may hold.
        peak_allocated_bytes: The peak of a trial that nobody watched.

    Raises:
        TargetError: The user's file does not keep the contract.
    """
    trial = _Trial(setup, micro_batch, micro_steps, allowed_bytes)
    found: list[Profiled] = []
    for way in _WAYS:
        found.append(_record(trial, way))
        memory = found[-1].memory
        if memory is not None and memory.peak_allocated_bytes == peak_allocated_bytes:
            return replace(found[-1], reason=f"{found[0].reason or _CHANGES}; so {way.lack}" if way.lack else None)
    first = next((one for one in found if one.memory is not None), None)
    return found[0] if first is None else replace(first, reason=_DIFFERS)


_CHANGES: Final = "the target takes other memory when it is watched closely"
_DIFFERS: Final = "no two trials of this target take the same memory; this is that of one of them"


@dataclass(frozen=True, slots=True)
class _Trial:
    """One and the same trial, as often as wanted."""

    setup: Setup
    micro_batch: int
    micro_steps: int
    allowed_bytes: int

    def run(self, recorder: ProfileRecorder) -> Trial:
        return run_trial(self.setup, self.micro_batch, self.micro_steps, self.allowed_bytes, recorder).trial


def _record(trial: _Trial, way: _Way) -> Profiled:
    named = list(named_modules(trial.setup.model))
    recorder = ProfileRecorder([module for module, _ in named], hooks_modules=way.modules, hooks_graph=way.graph)
    ended = trial.run(recorder)
    if ended.outcome is not Outcome.FITS or recorder.start is None:
        return Profiled(None, f"the target fails when it is watched closely ({ended.error})", ended.outcome)
    try:
        story = tell(recorder.start, recorder.events, recorder.marks)
    except UnexplainedError as error:
        return Profiled(None, str(error), ended.outcome)
    names = [name for _, name in named]
    memory = summarise(story, names, trial.micro_batch, trial.micro_steps, ended.peak_reserved_bytes or 0)
    return Profiled(memory, None, ended.outcome)
