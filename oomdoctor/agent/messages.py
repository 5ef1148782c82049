"""Messages from the agent in a command's process to the parent, stated once for both sides.

The channel sends each as one JSON object on a line of its own, with the protocol's version, its event and its fields.
The command's own code could write to the same socket, so the parent checks every field before it believes one.

Dataclasses are made by `exec`, after which a Python that was interrupted forgets to end by SIGINT. So this is imported
along with torch and never at exit, and a process without torch sends its two events by their fields.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Union, get_args

from .accumulation_messages import AccumulationWindow
from .phase_meter import MeteredPhase  # noqa: TC001 - what reads a message goes by the annotations

Ending = Literal["steps", "error", "exit", "step"]


@dataclass(frozen=True)
class UnknownRead:
    """A line of the program that read values which a null GPU does not have.

    Attributes:
        place: File name and line, such as `model.py:31`; of a library's line, that of the program which called it.
        text: The expression that read; empty where the source is not known.
        effect: `size` where the size of a tensor depends on it, `decision` where it is a condition, `bound` where the
            largest size was taken, `even` where choices were spread evenly, `check` where only an error depends on
            it, else `value`.
    """

    place: str
    text: str
    effect: Literal["size", "decision", "bound", "even", "check", "value"]


LEAST_GROWTH_BYTES = 1 << 14
"""Bytes in live tensors by which the steps of a command have to end higher to be taken for growth; what scripts keep of
each step to log it is less."""


@dataclass(frozen=True)
class TorchImported:
    """A Python has imported torch.

    Attributes:
        rank: Its rank among the processes that train together.
        world_size: Number of these processes.
        python: Version.
        torch: Version.
        cuda: Version that torch was built for; None for none.
        pid: Its process id.
    """

    event: ClassVar[str] = "started"
    rank: int
    world_size: int
    python: str
    torch: str
    cuda: str | None
    pid: int = field(default_factory=os.getpid)


def has_kernels(architectures: list[str], capability: tuple[int, int]) -> bool:
    """Return whether this torch can run on such a card: with kernels for it, or with code that the driver compiles."""
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built_for = divmod(int(number), 10)
        if built_for <= capability and (kind == "compute" or built_for[0] == capability[0]):
            return True
    return False


@dataclass(frozen=True)
class DeviceInfo:
    """CUDA was initialised, and showed a device.

    Attributes:
        index: The device's number in this process.
        name: The device's name.
        compute_capability: Such as `8.9`.
        has_kernels: Whether this torch was built for such a card.
        total_bytes: Memory of the device.
        free_bytes: Memory that was free before PyTorch took anything.
        pid: The process.
    """

    event: ClassVar[str] = "device"
    index: int
    name: str
    compute_capability: str
    has_kernels: bool
    total_bytes: int
    free_bytes: int
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class FirstBatch:
    """The first tensors that a module was called with.

    Attributes:
        shapes: Their shapes.
        training: Whether the module was in training mode.
        pid: The process.
    """

    event: ClassVar[str] = "batch"
    shapes: tuple[tuple[int, ...], ...]
    training: bool
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class OutOfMemory:
    """PyTorch's allocator found no memory.

    Attributes:
        tried_bytes: Bytes that it was asked for.
        total_bytes: Memory of the device.
        free_bytes: Memory that the device had free.
        phase: The part of training that it was in.
        iteration: Optimizer steps begun.
        steps: Optimizer steps done.
        count: Times that it has found none, with this one.
        pid: The process.
    """

    event: ClassVar[str] = "oom"
    tried_bytes: int
    total_bytes: int
    free_bytes: int
    phase: str
    iteration: int
    steps: int
    count: int
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class StepDone:
    """An optimizer step has been done.

    Attributes:
        steps: Optimizer steps so far.
        pid: The process.
    """

    event: ClassVar[str] = "step"
    steps: int
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation begins or has ended; one that a backward followed was none.

    Attributes:
        begins: Whether it begins.
        pid: The process.
    """

    event: ClassVar[str] = "evaluation"
    begins: bool
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class NoOptimizer:
    """A process trains, and has made no optimizer of torch.

    Attributes:
        backwards: Backward passes that it has run.
        pid: The process.
    """

    event: ClassVar[str] = "no_optimizer"
    backwards: int
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class FileWritten:
    """A process opened a file to write.

    Attributes:
        path: The file, absolute.
        pid: The process.
    """

    event: ClassVar[str] = "wrote"
    path: str
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class LiteralsSet:
    """A process is about to run a file whose literals were set.

    Attributes:
        path: The file, absolute and without links.
        pid: The process.
    """

    event: ClassVar[str] = "literals"
    path: str
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class PythonWithoutTorch:
    """A Python that never imported torch has ended.

    Attributes:
        frameworks: Other frameworks that it had imported.
        pid: The process.
    """

    event: ClassVar[str] = "no_torch"
    frameworks: tuple[str, ...]
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class ErrorLink:
    """One error of a chain.

    Attributes:
        types: Qualified names of the classes that it is an instance of, its own first.
        text: Its message.
    """

    types: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class ErrorChain:
    """An error that nobody handled.

    Attributes:
        links: It, and the errors that it was raised from or while handling.
        traceback: As Python prints it.
    """

    links: tuple[ErrorLink, ...]
    traceback: str


@dataclass(frozen=True)
class ProcessDescription:
    """A process, as the fork server has to know it.

    Attributes:
        executable: Its Python.
        options: That Python's own options.
        cwd: Its working directory.
        environment: The environment that it was started with.
        environment_at_torch: Its environment when torch was imported.
        modules: Modules of installed packages that it had imported, in order.
    """

    executable: str
    options: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    environment_at_torch: dict[str, str]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class ProgramLines:
    """Lines of Python for one kind of place in a program.

    Attributes:
        place: Field of `oomdoctor.remedies.file_edit.FileEdit`, such as `model`.
        lines: The lines.
    """

    place: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RemedyApplied:
    """A remedy that was applied to what a program made.

    Attributes:
        name: Its name.
        acts_on: What it acts on, in words.
        count: How many of them, such as checkpointed blocks.
        total: How many there are.
        note: What to know besides; empty for nothing.
        edit: The same, done by hand.
    """

    name: str
    acts_on: str
    count: int
    total: int
    note: str
    edit: tuple[ProgramLines, ...]


@dataclass(frozen=True)
class RemediesApplied:
    """The remedies of a trial are applied, by the end of the first optimizer step; or they cannot be.

    Attributes:
        remedies: What was applied.
        host_bytes: Most bytes that a forward has moved to the host, where activations are offloaded.
        problem: Why the program cannot be measured with them; None where it can.
        pid: The process.
    """

    event: ClassVar[str] = "remedies"
    remedies: tuple[RemedyApplied, ...]
    host_bytes: int
    problem: str | None
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Measurements:
    """The last word of a process that has imported torch.

    Attributes:
        ending: `steps` (it has done those that were asked for), `error`, `exit`, or `step` (memory had run out, and it
            went on).
        steps: Optimizer steps done.
        idle_optimizers: Optimizers that were made and took no step.
        passes: Backward passes in each step of the one optimizer; None where there is none, or several.
        cuda: Whether CUDA was initialised; `communicators`: ranks of each communicator that a null GPU's NCCL made.
        pipeline_micro_batches: Most micro-batches of a pipeline's schedule, on a rank that runs alone; 0 for none.
        optimizer: Class name.
        parameter_bytes: Bytes of the parameters that the optimizers hold; `gradient_bytes`: those of all gradients, at
            each optimizer's first step.
        peak_allocated_bytes: Most bytes in live tensors; `peak_reserved_bytes`: most bytes held from the driver.
        fixed_bytes: Bytes that stay allocated from one micro-step to the next.
        alloc_retries: Times that the allocator had to give back its cache; `workspace_retries`: for cuDNN's workspaces.
        workspace_bytes: Bytes of the largest of these; 0 where a real GPU does not tell.
        timing_bytes: Bytes of the buffer of `kernel_timing`, where that limits; else 0.
        ooms: Times that it ran out.
        training_peak_bytes: Most bytes in training.
        evaluation_peak_bytes: Most bytes in an evaluation; None where there was none.
        phases: Memory by phase.
        allocations: The allocator's events, packed, where memory did not run out and the history is whole; else empty.
        zeros_read: Times that it read data back from a null GPU; `unknown_reads`: the program's lines that did so.
        unknown_calls: CUDA calls that the null GPU does not serve.
        assumptions: Memory that it counts by a rule, or not at all; see `null_gpu`.
        error: The error that ended it; None where none did.
        step_ends: Bytes in live tensors at the end of each step.
        memory_fraction: Part of the device's memory that the program allows PyTorch; 1 for all of it.
        holder: What holds the memory that steps leave behind, in words; looked for where they go on doing so.
        process: Description of the process, where that was asked for.
        failures: Failures of the agent, each of which left something unmeasured.
        pid: The process.
    """

    event: ClassVar[str] = "measured"
    ending: Ending
    steps: int
    idle_optimizers: int
    passes: int | None
    cuda: bool
    optimizer: str | None
    parameter_bytes: int | None
    gradient_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    fixed_bytes: int | None
    alloc_retries: int | None
    workspace_retries: int | None
    workspace_bytes: int
    timing_bytes: int
    ooms: int | None
    training_peak_bytes: int | None
    evaluation_peak_bytes: int | None
    phases: tuple[MeteredPhase, ...]
    allocations: str
    zeros_read: int
    unknown_reads: tuple[UnknownRead, ...]
    unknown_calls: tuple[str, ...]
    assumptions: tuple[str, ...]
    communicators: tuple[int, ...]
    pipeline_micro_batches: int
    error: ErrorChain | None
    step_ends: tuple[int, ...]
    memory_fraction: float
    holder: str | None
    process: ProcessDescription | None
    failures: tuple[str, ...]
    pid: int = field(default_factory=os.getpid)


Message = Union[  # noqa: UP007 - Python 3.8 has no other way to write it
    TorchImported,
    DeviceInfo,
    FirstBatch,
    OutOfMemory,
    StepDone,
    Evaluation,
    NoOptimizer,
    FileWritten,
    LiteralsSet,
    PythonWithoutTorch,
    AccumulationWindow,
    RemediesApplied,
    Measurements,
]

KINDS: dict[str, type[Message]] = {kind.event: kind for kind in get_args(Message)}
"""Class of a message by its event."""
