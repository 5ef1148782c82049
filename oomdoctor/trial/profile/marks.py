"""The allocator's history and the marks beside it: phases, module calls, and which tensors lie at which address.

Source: `torch.cuda.memory._record_memory_history` and `_snapshot`, torch 2.6 to 2.15. Runs in the worker.

A mark is tied to the history by how many blocks had been allocated and freed before it, not by time: the same step
gives the same marks, and no two of them can change places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from oomdoctor.results import Category
from oomdoctor.target.placement import plain_parts, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oomdoctor.results import PhaseName


MOST_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """State of the allocator when recording began.

    Attributes:
        segments: As `_snapshot` gives them.
        settings: As `_snapshot` gives them; empty where that version of torch tells none.
        count: Blocks that were allocated and freed before, as `count_now` counts them.
        reserved_bytes: Bytes held from the driver.
    """

    segments: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    count: int
    reserved_bytes: int


def start_recording() -> HistoryStart:
    """Begin a new history."""
    snapshot = _snapshot()
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled="all", context=None, stacks="python", max_entries=MOST_EVENTS
    )
    count, _ = count_now()
    device = torch.cuda.current_device()
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    return HistoryStart(segments, snapshot.get("allocator_settings") or {}, count, torch.cuda.memory_reserved())


def read_events() -> Sequence[Mapping[str, Any]]:
    """Return the allocator's events since recording began, oldest first."""
    traces = _snapshot()["device_traces"]
    found: Sequence[Mapping[str, Any]] = traces[torch.cuda.current_device()] if traces else ()
    return found


def stop_recording() -> None:
    """End the history, and forget it."""
    torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above


def count_now() -> tuple[int, int]:
    """Return how many blocks were allocated and freed up to now, and the bytes in live ones.

    The public `torch.cuda.memory_stats` says the same and takes ten times as long, at every module of every step.
    """
    stats = torch._C._cuda_memoryStats(_DEVICE)  # noqa: SLF001 - for the reason above
    blocks = stats["allocation"]["all"]
    return blocks["allocated"] + blocks["freed"], stats["allocated_bytes"]["all"]["current"]


COUNTED: Final = frozenset({"alloc", "free_requested"})
"""Events that `count_now` counts."""
_DEVICE = 0  # a worker sees its one device as the first


def _snapshot() -> dict[str, Any]:
    found: dict[str, Any] = torch.cuda.memory._snapshot()  # noqa: SLF001 - the only way to the events and blocks
    return found


class MarkKind(Enum):
    """Kind of a mark."""

    BEGIN = auto()  # a phase began; the value is a `Stage`
    END = auto()  # it ended
    ENTER = auto()  # a module's forward began; the value is the module's index
    LEAVE = auto()  # it ended
    BACK = auto()  # the backward reached what a module had computed; its index, or None for what no module had
    LABEL = auto()  # some blocks are known to be of a category; the value is a sequence of `Label`
    CLEAR = auto()  # cuBLAS gives its workspaces back
    CLEARED = auto()  # it has


class Mark(NamedTuple):
    """One note.

    Attributes:
        events: Blocks allocated and freed before it.
        allocated_bytes: Bytes in live blocks at that moment, as the allocator counts them.
        kind: What happened.
        value: More about it.
    """

    events: int
    allocated_bytes: int
    kind: MarkKind
    value: Any


@dataclass(frozen=True, slots=True)
class MicroPhase:
    """A phase of one micro-step of one iteration."""

    iteration: int
    micro_step: int
    phase: PhaseName


class Label(NamedTuple):
    """Label of the block at an address: its category, and the index of its module or None."""

    address: int
    category: Category
    module: int | None


class Marks(list[Mark]):
    """Marks in order of time."""

    def note(self, kind: MarkKind, value: object = None) -> None:
        """Note that something happens now."""
        count, allocated_bytes = count_now()
        self.append(Mark(count, allocated_bytes, kind, value))

    def label(self, labels: Sequence[Label]) -> None:
        """Note what some blocks are for, while they are live."""
        if labels:
            self.note(MarkKind.LABEL, labels)


def addresses(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    """Yield the addresses of tensors on a CUDA device; a tensor of several parts, such as a sparse one, has several."""
    for tensor in tensors:
        for part in plain_parts(tensor):
            address = _address(part)
            if address:
                yield address


def _address(tensor: torch.Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a kind of tensor without a storage of its own
        return 0


class TensorOwners:
    """Knows the modules' tensors.

    Args:
        modules: Every module of the model; a module is named by its position here.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._owner_of: dict[int, int] = {}
        self.parameters: list[nn.Parameter] = []
        for index, module in enumerate(modules):
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in self._owner_of:
                    self._owner_of[id(parameter)] = index
                    self.parameters.append(parameter)

    def weights(self) -> list[Label]:
        """Parameters and buffers, as they are now."""
        found: list[Label] = []
        for index, module in enumerate(self._modules):
            own = (*module._parameters.values(), *module._buffers.values())  # noqa: SLF001 - the public way takes long
            tensors = (tensor for tensor in own if tensor is not None)
            found.extend(Label(address, Category.WEIGHTS, index) for address in addresses(tensors))
        return found

    def gradients(self, parameters: Iterable[torch.Tensor] | None = None) -> list[Label]:
        """Return labels of the gradients that exist now, of all parameters or of some."""
        found: list[Label] = []
        for parameter in self.parameters if parameters is None else parameters:
            if parameter.grad is not None:
                owner = self._owner_of.get(id(parameter))
                found.extend(Label(address, Category.GRADIENTS, owner) for address in addresses((parameter.grad,)))
        return found

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> list[Label]:
        """Return labels of an optimizer's state."""
        return list(self._states(optimizer))

    def _states(self, optimizer: torch.optim.Optimizer) -> Iterator[Label]:
        for key, state in optimizer.state.items():
            owner = self._owner_of.get(id(key))
            for address in addresses(tensors_in(state)):
                yield Label(address, Category.OPTIMIZER_STATE, owner)


def inputs(batch: object) -> list[Label]:
    """Return labels of the tensors of a batch."""
    return [Label(address, Category.INPUT, None) for address in addresses(tensors_in(batch))]


_WRAPPED: Final = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names under which wrappers hold the module that they wrap, whatever the wrapper."""
_PARALLEL: Final = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_POSITION: Final = re.compile(r"\d+$")


def named_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield every module once, with its path; list positions are `*` where the list holds modules of one kind.

    What `torch.compile`, `DataParallel` and checkpointing put around a module adds nothing to a path.
    """
    yield from _walk(model, (), set())


def _walk(module: nn.Module, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[nn.Module, str]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module, ".".join(path)
    children = [(name, child) for name, child in module._modules.items() if child is not None]  # noqa: SLF001 - as torch's own walk
    is_list = isinstance(module, nn.ModuleList) or len({type(child) for _, child in children}) == 1
    holds_many = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    for name, child in children:
        shown = _POSITION.sub("*", name) if holds_many and is_list else name
        yield from _walk(child, path if _is_wrapped(module, name) else (*path, shown), seen)


def _is_wrapped(parent: nn.Module, name: str) -> bool:
    return name in _WRAPPED or (name == "module" and isinstance(parent, _PARALLEL))
