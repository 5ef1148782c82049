"""What the hook in a command's Pythons says, field by field; what is not so is no message of the hook's.

`oomdoctor_hook.trial` writes them. The command's own code could write to the same socket, so nothing is believed to be
there before it was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from oomdoctor.results import Phase, PhaseName  # noqa: TC001 - what reads a message goes by the annotations
from oomdoctor.serialisation import MismatchError, decode

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Started:
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
class Shown:
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
class Batch:
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
class Oom:
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
class Step:
    """An optimizer step has been done.

    Attributes:
        pid: The process.
        steps: How many so far.
    """

    pid: int
    steps: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """A process opened a file to write.

    Attributes:
        pid: The process.
        path: The file, absolute.
    """

    pid: int
    path: str


@dataclass(frozen=True, slots=True)
class NoTorch:
    """A Python that never imported torch has ended.

    Attributes:
        pid: The process.
        frameworks: What it had imported instead.
    """

    pid: int
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """One error of a chain.

    Attributes:
        types: Qualified names of the classes that it is an instance of, its own first.
        text: Its message.
    """

    types: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that nobody handled.

    Attributes:
        links: It, and what it was raised from or while handling.
        traceback: As Python prints it.
    """

    links: tuple[Link, ...]
    traceback: str


@dataclass(frozen=True, slots=True)
class Described:
    """A process, as a fork server has to know it (`oomdoctor_hook.forking.describe`).

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
class Measured:
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
    error: Failure | None
    process: Described | None
    failures: tuple[str, ...]


Message: TypeAlias = Started | Shown | Batch | Oom | Step | Wrote | NoTorch | Measured

_KINDS: Final[Mapping[object, type[Any]]] = {
    "started": Started,
    "device": Shown,
    "batch": Batch,
    "oom": Oom,
    "step": Step,
    "wrote": Wrote,
    "no_torch": NoTorch,
    "measured": Measured,
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
    return message if not isinstance(message, Measured) or _has_links(message) else None


def _has_links(measured: Measured) -> bool:
    links = None if measured.error is None else measured.error.links
    return links is None or (bool(links) and all(link.types for link in links))
