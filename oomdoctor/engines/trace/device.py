"""The emulated GPU: a card, the simulated caching allocator, and the trace of its allocations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory
from oomdoctor.engines.trace.kernels.random_draws import dropout_state_bytes, dropout_state_call
from oomdoctor.engines.trace.operators import temporaries_of
from oomdoctor.engines.trace.temporaries import AllocationStep, Call, LibraryFunction, Workspace
from oomdoctor.engines.trace.torch_internals import bare_tensor, in_backward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.allocator.settings import Rules, Settings
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import OpTrace


STREAM: Final = 0


class EmulatedDevice:
    """One GPU that is only counted.

    Args:
        card: What it looks like.
        settings: What its allocator is told.
        rules: What the allocator's version does differently from others.

    Attributes:
        card: What it looks like.
        allocator: PyTorch's caching allocator, simulated.
        history: What the allocator did, while somebody wants to know; else None.
        journal: Notes for other sizes and cards, while somebody wants them; else None.
        reads: Times that data was read back from the device, which answers with zeros.
    """

    def __init__(self, card: Card, settings: Settings, rules: Rules) -> None:
        self.card = card
        self.allocator = CachingAllocator(DeviceMemory(card.total_bytes, card.context_bytes), settings, rules)
        self.history: list[dict[str, Any]] | None = None
        self.journal: OpTrace | None = None
        self.reads = 0
        self._workspaces: dict[object, Allocation | None] = {}
        self._dropout_state: Allocation | None = None
        self._requested: dict[int, int] = {}

    def malloc(self, nbytes: int) -> int:
        """Allocate.

        Raises:
            torch.OutOfMemoryError: It does not fit.
        """
        try:
            address = self.allocator.malloc(nbytes, STREAM)
        except AllocationError as error:
            raise torch.OutOfMemoryError(str(error)) from None
        if self.history is not None:
            self._requested[address] = nbytes
            self.history.append(_event("alloc", address, nbytes))
        if self.journal is not None:
            self.journal.allocated(address, nbytes)
        return address

    def free(self, address: int) -> None:
        """Give an allocation back."""
        self.allocator.free(address)
        if self.journal is not None:
            self.journal.freed(address)
        if self.history is not None:
            nbytes = self._requested.pop(address, 0)
            self.history += (_event("free_requested", address, nbytes), _event("free_completed", address, nbytes))

    def empty_cache(self) -> None:
        """Give back to the driver what is in no use."""
        self.allocator.empty_cache()
        if self.journal is not None:
            self.journal.emptied()

    def record(self, *, enabled: bool) -> None:
        """Begin to note what the allocator does, or end."""
        self.history = [] if enabled else None

    def block(self, nbytes: int) -> Allocation | None:
        """Memory that is given back with the last reference to it; None for no bytes."""
        return Allocation(self, self.malloc(nbytes)) if nbytes else None

    def tensor(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - shapes
        """A tensor with memory of its own, which it keeps as long as its storage lives."""
        tensor = bare_tensor(size, stride, 0, dtype)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes:
            storage._oomdoctor_block = Allocation(self, self.malloc(nbytes))  # type: ignore[attr-defined] # noqa: SLF001 - ours
        return tensor

    def take_noted(
        self, call: Call, script: tuple[AllocationStep, ...], held: list[Allocation | None], *, is_after: bool
    ) -> None:
        """As `take`; the journal has the call instead of what it takes on this card."""
        journal = self.journal
        if journal is None:
            self.take(script, held)
            return
        journal.takes(call, is_after=is_after, in_backward=in_backward())
        with self._unnoted():
            self.take(script, held)

    def call_library(self, function: str, *args: object) -> None:
        """Take what a library's function takes while it runs, and give it back; `models` say how much."""
        call = Call(self.card, LibraryFunction(function), args, {}, [])
        held: list[Allocation | None] = []
        self.take_noted(call, temporaries_of(call).after, held, is_after=True)
        held.clear()
        if self.journal is not None:
            self.journal.ended()

    @contextmanager
    def _unnoted(self) -> Iterator[None]:
        """Keep what happens inside out of the journal, which has the call."""
        if self.journal is None:
            yield
            return
        self.journal.is_inside = True
        try:
            yield
        finally:
            self.journal.is_inside = False

    def take(self, script: tuple[AllocationStep, ...], held: list[Allocation | None]) -> None:
        """Allocate and give back what a kernel does: bytes, `-1 - position` of what is given back, or a workspace."""
        for step in script:
            if isinstance(step, Workspace):
                self._keep(step, on_engine_thread=in_backward())
            elif step < 0:
                held[-1 - step] = None
            else:
                held.append(self.block(step))

    def _keep(self, workspace: Workspace, *, on_engine_thread: bool) -> None:
        """Allocate a library's workspace once for a thread; it stays until it is cleared."""
        key = (workspace.library, on_engine_thread)
        if key not in self._workspaces:
            self._workspaces[key] = self.block(workspace.nbytes)

    def keep_dropout_state(self) -> None:
        """Allocate what cuDNN's dropout keeps for the process, once. Source: `get_dropout_state`, RNN.cpp."""
        if self._dropout_state is None:
            self.block(8)  # the seed
            if self.journal is not None:
                self.journal.takes(dropout_state_call(self.card), is_after=True, in_backward=False)
            with self._unnoted():
                self._dropout_state = self.block(dropout_state_bytes(self.card))

    def clear_workspaces(self) -> None:
        """Give back what libraries keep."""
        self._workspaces.clear()
        if self.journal is not None:
            self.journal.cleared()

    def forget_dropout_state(self) -> None:
        """Be as a process that has used no dropout of cuDNN's."""
        self._dropout_state = None


class Allocation:
    """An allocation, given back when nobody refers to it any more."""

    __slots__ = ("_device", "address")

    def __init__(self, device: EmulatedDevice, address: int) -> None:
        self._device = device
        self.address = address

    def __del__(self) -> None:
        self._device.free(self.address)


def _event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": STREAM, "frames": []}
