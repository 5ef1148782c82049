"""Events of a trial: the messages of its processes, gathered into one record. Nothing here waits or decides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oomdoctor.agent.accumulation_messages import AccumulationWindow
from oomdoctor.agent.channel import PROTOCOL
from oomdoctor.agent.messages import (
    KINDS,
    DeviceInfo,
    Evaluation,
    FileWritten,
    FirstBatch,
    LiteralsSet,
    Measurements,
    NoOptimizer,
    OutOfMemory,
    PythonWithoutTorch,
    RemediesApplied,
    StepDone,
    TorchImported,
)
from oomdoctor.agent.phase_meter import PHASES
from oomdoctor.codec import MismatchError, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.agent.messages import Message

STARTING, LOADING, EVALUATING, TRAINING = "starting", "loading", "evaluating", "training"
"""Stages: until a Python imports torch, until the first batch of training, in an evaluation, and all else."""

_MOST_MESSAGES = 10_000
"""Messages of a kind that are kept; a command that says more says nothing new."""


def read_message(data: Mapping[str, Any]) -> Message | None:
    """Return one message; None where the data is none.

    The command's own code could write to the same socket, so nothing is believed to be there before it was looked at.
    """
    event = data.get("event")
    kind = KINDS.get(event) if isinstance(event, str) and data.get("protocol") == PROTOCOL else None
    if kind is None:
        return None
    try:
        message: Message = decode(kind, data, str(event))
    except MismatchError:
        return None
    # Phases have to be known and every error to have a type, which the types of the fields do not say.
    phases = [message.phase] if isinstance(message, OutOfMemory) else []
    if isinstance(message, Measurements):
        phases = [phase.phase for phase in message.phases]
        if message.error is not None and not (message.error.links and all(link.types for link in message.error.links)):
            return None
    return message if all(phase in PHASES for phase in phases) else None


@dataclass(slots=True)
class TrialEvents:
    """Record of what the processes of a trial have sent so far.

    Attributes:
        started: Pythons that imported torch, by process id.
        devices: The device that CUDA showed each process that initialised it.
        batches: The last batch of which it was told, by process id.
        ooms: Each time that PyTorch's allocator found no memory, oldest first.
        steps: Optimizer steps done, by process id.
        measured: The last word of each training process.
        written: Paths that the command wrote to, in order.
        edited: Files that were run with their literals set, by real path.
        frameworks: Others than torch that Pythons without torch had imported; None where no such Python ended.
        without_optimizer: Backward passes of each process that had made no optimizer of torch, by process.
        stages: What the command did, and since when, in seconds of the monotonic clock, as its processes told.
        windows: Optimizer steps of each process, where the accumulation is recorded.
        remedies: What processes have applied of a trial's remedies, or why they could not.
        survived: Processes that took an optimizer step, or ended well, after they had run out of memory.
    """

    started: dict[int, TorchImported] = field(default_factory=dict)
    devices: dict[int, DeviceInfo] = field(default_factory=dict)
    batches: dict[int, FirstBatch] = field(default_factory=dict)
    ooms: list[OutOfMemory] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    measured: dict[int, Measurements] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)
    frameworks: tuple[str, ...] | None = None
    without_optimizer: dict[int, int] = field(default_factory=dict)
    stages: list[tuple[str, float]] = field(default_factory=lambda: [(STARTING, time.monotonic())])
    windows: dict[int, list[AccumulationWindow]] = field(default_factory=dict)
    remedies: list[RemediesApplied] = field(default_factory=list)
    survived: set[int] = field(default_factory=set)

    def add(self, data: Mapping[str, Any]) -> None:
        """Take in one message; what is none is passed over."""
        match message := read_message(data):
            case TorchImported():
                self.started[message.pid] = message
                if self.stages[-1][0] == STARTING:
                    self._enter(LOADING)
            case DeviceInfo():
                self.devices[message.pid] = message
            case FirstBatch():
                self.batches[message.pid] = message
                if message.training:
                    self._enter(TRAINING)
            case Evaluation():
                self._enter(EVALUATING if message.begins else TRAINING)
            case OutOfMemory() if len(self.ooms) < _MOST_MESSAGES:
                self.ooms.append(message)
            case StepDone() | Measurements():
                self._take_steps(message)
            case _:
                self._add_aside(message)

    def _add_aside(self, message: Message | None) -> None:
        """Take in what is no part of training."""
        match message:
            case NoOptimizer():
                self.without_optimizer[message.pid] = message.backwards
            case AccumulationWindow() if len(found := self.windows.setdefault(message.pid, [])) < _MOST_MESSAGES:
                found.append(message)
            case RemediesApplied() if len(self.remedies) < _MOST_MESSAGES:
                self.remedies.append(message)
            case FileWritten() if len(self.written) < _MOST_MESSAGES:
                self.written.setdefault(message.path)
            case LiteralsSet() if len(self.edited) < _MOST_MESSAGES:
                self.edited.add(message.path)
            case PythonWithoutTorch():
                self.frameworks = tuple(dict.fromkeys((*(self.frameworks or ()), *message.frameworks)))

    def spent(self) -> dict[str, float]:
        """Return the seconds spent in each stage until now."""
        found = dict.fromkeys((stage for stage, _ in self.stages), 0.0)
        for (stage, begin), (_, end) in pairwise([*self.stages, ("", time.monotonic())]):
            found[stage] += end - begin
        return found

    def _enter(self, stage: str) -> None:
        if stage != self.stages[-1][0] and len(self.stages) < _MOST_MESSAGES:
            self.stages.append((stage, time.monotonic()))

    @property
    def world_size(self) -> int:
        """Processes that train, as those that use a GPU were told."""
        return max([self.started[pid].world_size for pid in self.devices if pid in self.started], default=1)

    @property
    def has_all_steps(self) -> bool:
        """Whether every training process has done as many steps as were asked for."""
        done = [measured for measured in self.measured.values() if measured.ending == "steps"]
        return len(done) >= max(self.world_size, 1)

    @property
    def has_failed(self) -> bool:
        """Whether a training process has ended by an error that nobody handled."""
        return any(measured.ending == "error" for measured in self.measured.values())

    @property
    def has_refused_remedies(self) -> bool:
        """Whether a process could not apply the trial's remedies."""
        return any(told.problem is not None for told in self.remedies)

    @property
    def has_died_of_oom(self) -> bool:
        """Whether a process ran out of memory, and an error that nobody handled ended it."""
        died = {pid for pid, measured in self.measured.items() if measured.ending == "error"}
        return any(oom.pid in died for oom in self.ooms)

    @property
    def has_survived(self) -> bool:
        """Whether a process went on training after it had run out of memory."""
        return bool(self.survived)

    @property
    def has_used_gpu(self) -> bool:
        """Whether anything was allocated on a GPU, as far as is known."""
        trainers = self.trainers()
        return bool(self.devices) and (not trainers or any(one.peak_allocated_bytes for one in trainers))

    @property
    def done_steps(self) -> int:
        """Optimizer steps of the process that did most."""
        return max(self.steps.values(), default=0)

    def trainers(self) -> list[Measurements]:
        """The last words of processes that used a GPU, in the order of their ranks."""
        ranks = {pid: started.rank for pid, started in self.started.items()}
        with_gpu = [one for one in self.measured.values() if one.cuda]
        with_gpu.sort(key=lambda one: (ranks.get(one.pid, 0), one.pid))
        return [measured for measured in with_gpu if measured.steps] or with_gpu

    def _take_steps(self, message: StepDone | Measurements) -> None:
        self.steps[message.pid] = message.steps
        goes_on = isinstance(message, StepDone) or (message.ending == "exit" and message.error is None)
        if isinstance(message, Measurements):
            self.measured[message.pid] = message
        else:
            self._enter(TRAINING)
        # A step, or a good end, of a process that had run out of memory: its own code caught the error.
        if goes_on and any(oom.pid == message.pid for oom in self.ooms):
            self.survived.add(message.pid)
