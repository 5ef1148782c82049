"""Events of a trial: the messages of its processes, field by field, gathered into one record.

`oomdoctor.agent` writes them. The command's own code could write to the same socket, so nothing is believed to be
there before it was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from oomdoctor.results import Phase, PhaseName  # noqa: TC001 - what reads a message goes by the annotations
from oomdoctor.results.codec import MismatchError, decode

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TorchImported:
    """A Python has imported torch.

    Attributes:
        pid: Its process id.
        rank: Which of the processes that train together it is.
        world_size: How many those are.
        python: Version.
        torch: Version.
        cuda: Version that torch was built for; None for none.
    """

    pid: int
    rank: int
    world_size: int
    python: str
    torch: str
    cuda: str | None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """CUDA was initialised, and showed a device.

    Attributes:
        pid: The process.
        name: The device's name.
        compute_capability: Such as `8.9`.
        has_kernels: Whether this torch was built for such a card.
        total_bytes: Its memory.
        free_bytes: What was free before PyTorch took anything.
    """

    pid: int
    name: str
    compute_capability: str
    has_kernels: bool
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """The first tensors that a module was called with.

    Attributes:
        pid: The process.
        shapes: Their shapes.
        training: Whether the module was in training mode.
    """

    pid: int
    shapes: tuple[tuple[int, ...], ...]
    training: bool


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """PyTorch's allocator found no memory.

    Attributes:
        pid: The process.
        tried_bytes: What it was asked for.
        free_bytes: What the device had free.
        phase: The part of training that it was in.
        iteration: Optimizer steps begun.
    """

    pid: int
    tried_bytes: int
    free_bytes: int
    phase: PhaseName
    iteration: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """An optimizer step has been done.

    Attributes:
        pid: The process.
        steps: How many so far.
    """

    pid: int
    steps: int


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A process opened a file to write.

    Attributes:
        pid: The process.
        path: The file, absolute.
    """

    pid: int
    path: str


@dataclass(frozen=True, slots=True)
class PythonWithoutTorch:
    """A Python that never imported torch has ended.

    Attributes:
        pid: The process.
        frameworks: What it had imported instead.
    """

    pid: int
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErrorLink:
    """One error of a chain.

    Attributes:
        types: Qualified names of the classes that it is an instance of, its own first.
        text: Its message.
    """

    types: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ErrorChain:
    """An error that nobody handled.

    Attributes:
        links: It, and what it was raised from or while handling.
        traceback: As Python prints it.
    """

    links: tuple[ErrorLink, ...]
    traceback: str


@dataclass(frozen=True, slots=True)
class ProcessDescription:
    """A process, as a fork server has to know it (`oomdoctor.agent.forking`).

    Attributes:
        executable: Its Python.
        options: That Python's own options.
        cwd: Where it runs.
        environment: What it was started with.
        environment_at_torch: What that had become when torch was imported.
        modules: What it had imported of installed packages, in order.
    """

    executable: str
    options: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    environment_at_torch: dict[str, str]
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """The last word of a process that has imported torch.

    Attributes:
        pid: The process.
        ending: `steps` (it has done those that were asked for), `error`, `exit`, or `step` (memory had run out, and it
            went on).
        steps: Optimizer steps done.
        idle_optimizers: Optimizers that were made and took no step.
        cuda: Whether CUDA was initialised.
        optimizer: Class name.
        parameter_bytes: Bytes of what the optimizers hold.
        gradient_bytes: Bytes of all its gradients, at each optimizer's first step.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        fixed_bytes: Bytes that stay allocated from one micro-step to the next.
        alloc_retries: Times that the allocator had to give back its cache.
        ooms: Times that it ran out.
        training_peak_bytes: Most bytes in training.
        evaluation_peak_bytes: Most bytes in an evaluation; None where there was none.
        phases: Memory by phase.
        zeros_read: Times that it read data back from a null GPU.
        unknown_calls: CUDA calls that the null GPU does not serve.
        error: What ended it; None where nothing did.
        process: What it is, where that was asked for.
        failures: What could not be measured.
    """

    pid: int
    ending: Literal["steps", "error", "exit", "step"]
    steps: int
    idle_optimizers: int
    cuda: bool
    optimizer: str | None
    parameter_bytes: int | None
    gradient_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    fixed_bytes: int | None
    alloc_retries: int | None
    ooms: int | None
    training_peak_bytes: int | None
    evaluation_peak_bytes: int | None
    phases: tuple[Phase, ...]
    zeros_read: int
    unknown_calls: tuple[str, ...]
    error: ErrorChain | None
    process: ProcessDescription | None
    failures: tuple[str, ...]


Message: TypeAlias = (
    TorchImported | DeviceInfo | FirstBatch | OutOfMemory | StepDone | FileWritten | PythonWithoutTorch | Measurements
)

_KINDS: Final[Mapping[object, type[Any]]] = {
    "started": TorchImported,
    "device": DeviceInfo,
    "batch": FirstBatch,
    "oom": OutOfMemory,
    "step": StepDone,
    "wrote": FileWritten,
    "no_torch": PythonWithoutTorch,
    "measured": Measurements,
}


def read_message(data: Mapping[str, Any]) -> Message | None:
    """One message; None where the data is none."""
    event = data.get("event")
    kind = _KINDS.get(event) if isinstance(event, str) else None
    if kind is None:
        return None
    try:
        message: Message = decode(kind, data, str(event))
    except MismatchError:
        return None
    return message if not isinstance(message, Measurements) or _has_links(message) else None


def _has_links(measured: Measurements) -> bool:
    links = None if measured.error is None else measured.error.links
    return links is None or (bool(links) and all(link.types for link in links))


_MOST_MESSAGES = 10_000
"""Messages of a kind that are kept; a command that says more says nothing new."""


@dataclass(slots=True)
class TrialEvents:
    """What was heard so far.

    Attributes:
        started: Pythons that imported torch, by process id.
        devices: What CUDA showed each process that initialised it.
        batches: The last batch of which it was told, by process id.
        ooms: Each time that PyTorch's allocator found no memory, oldest first.
        steps: Optimizer steps done, by process id.
        measured: The last word of each training process.
        written: Paths that the command wrote to, in order.
        frameworks: Others than torch that Pythons without torch had imported; None where no such Python ended.
        survived: Processes that took an optimizer step, or ended well, after they had run out of memory.
    """

    started: dict[int, TorchImported] = field(default_factory=dict)
    devices: dict[int, DeviceInfo] = field(default_factory=dict)
    batches: dict[int, FirstBatch] = field(default_factory=dict)
    ooms: list[OutOfMemory] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    measured: dict[int, Measurements] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)
    frameworks: tuple[str, ...] | None = None
    survived: set[int] = field(default_factory=set)

    def add(self, data: Mapping[str, Any]) -> None:
        """Take in one message; what is none is passed over."""
        message = read_message(data)
        if message is not None:
            self._take(message)

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
        with_gpu = sorted(
            (one for one in self.measured.values() if one.cuda), key=lambda one: (self._rank(one), one.pid)
        )
        stepped = [measured for measured in with_gpu if measured.steps]
        return stepped or with_gpu

    def _rank(self, measured: Measurements) -> int:
        started = self.started.get(measured.pid)
        return 0 if started is None else started.rank

    def _take(self, message: Message) -> None:
        match message:
            case TorchImported():
                self.started[message.pid] = message
            case DeviceInfo():
                self.devices[message.pid] = message
            case FirstBatch():
                self.batches[message.pid] = message
            case OutOfMemory() if len(self.ooms) < _MOST_MESSAGES:
                self.ooms.append(message)
            case StepDone() | Measurements():
                self._take_steps(message)
            case FileWritten() if len(self.written) < _MOST_MESSAGES:
                self.written.setdefault(message.path)
            case PythonWithoutTorch():
                self.frameworks = tuple(dict.fromkeys((*(self.frameworks or ()), *message.frameworks)))

    def _take_steps(self, message: StepDone | Measurements) -> None:
        self.steps[message.pid] = message.steps
        goes_on = isinstance(message, StepDone) or (message.ending == "exit" and message.error is None)
        if isinstance(message, Measurements):
            self.measured[message.pid] = message
        # A step, or a good end, of a process that had run out of memory: its own code caught the error.
        if goes_on and any(oom.pid == message.pid for oom in self.ooms):
            self.survived.add(message.pid)
