"""The emulated GPU: a card, the simulated caching allocator, and the trace of its allocations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent import unknown_reads
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory
from oomdoctor.engines.trace.kernels.random_draws import dropout_state_bytes, dropout_state_call
from oomdoctor.engines.trace.op_trace import AllocationStep, LibraryFunction, OperatorCall, OptionalWorkspace, Workspace
from oomdoctor.engines.trace.operators import temporaries_of
from oomdoctor.engines.trace.torch_internals import bare_tensor, in_backward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import OpTrace


STREAM: Final = 0


class EmulatedDevice:
    """A GPU whose memory is counted and whose kernels do not run.

    Args:
        card: The card that is emulated.
        settings: Settings of the allocator.
        rules: Rules of the allocator's version.

    Attributes:
        card: The card that is emulated.
        allocator: The simulated caching allocator.
        history: Events of the allocator, while they are recorded; else None.
        op_trace: The trace for other sizes and cards, while it is recorded; else None.
        reads: Number of reads of data on the device, which return zeros, but for those of a program's checks.
        assumptions: Work areas that were left out, by the names under which results tell them.
        workspaces_given_up: Times that there was no room for a workspace, which was done without.
        workspace_retries: Times that the allocator gave back its cache for a workspace.
        workspace_bytes: Bytes of the largest workspace that was taken since the trial began.
    """

    def __init__(self, card: Card, settings: AllocatorSettings, rules: Rules) -> None:
        self.card = card
        memory = DeviceMemory(card.total_bytes, card.context_bytes, card.reserve_bytes)
        self.allocator = CachingAllocator(memory, settings, rules)
        self.history: list[dict[str, Any]] | None = None
        self.op_trace: OpTrace | None = None
        self.reads = self.workspaces_given_up = self.workspace_retries = self.workspace_bytes = 0
        self.assumptions: set[str] = set()
        self._workspaces: dict[object, Allocation | None] = {}
        self._fitted: tuple[dict[object, int], dict[object, int]] = ({}, {})  # the target's thread, autograd's
        self._dropout_state: Allocation | None = None
        self._requested: dict[int, int] = {}

    def note_read(self) -> bool:
        """Note a read of data, count it unless it is for a check of the program, and return what a boolean reads as.

        Raises:
            RuntimeError: The line waits for a value in a loop.
        """
        answer = unknown_reads.note_read()
        self.reads += answer is None
        return bool(answer)

    def malloc(self, nbytes: int) -> int:
        """Allocate bytes and return their address.

        Raises:
            torch.OutOfMemoryError: They do not fit.
        """
        try:
            address = self.allocator.malloc(nbytes, STREAM)
        except AllocationError as error:
            raise torch.OutOfMemoryError(str(error)) from None
        if self.history is not None:
            self._requested[address] = nbytes
            self.history.append(_event("alloc", address, nbytes))
        if self.op_trace is not None:
            self.op_trace.allocated(address, nbytes)
        return address

    def free(self, address: int) -> None:
        """Free an allocation."""
        self.allocator.free(address)
        if self.op_trace is not None:
            self.op_trace.freed(address)
        if self.history is not None:
            nbytes = self._requested.pop(address, 0)
            self.history += (_event("free_requested", address, nbytes), _event("free_completed", address, nbytes))

    def empty_cache(self) -> None:
        """Return unused memory to the driver."""
        self.allocator.empty_cache()
        if self.op_trace is not None:
            self.op_trace.emptied()

    def record(self, *, enabled: bool) -> None:
        """Begin or end to record the allocator's events."""
        self.history = [] if enabled else None

    def block(self, nbytes: int) -> Allocation | None:
        """Allocate memory that is freed with the last reference to it; None for no bytes."""
        return Allocation(self, self.malloc(nbytes)) if nbytes else None

    def tensor(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - shapes
        """Make a tensor with memory of its own, which lives as long as its storage."""
        tensor = bare_tensor(size, stride, dtype)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes:
            storage._oomdoctor_block = Allocation(self, self.malloc(nbytes))  # type: ignore[attr-defined] # noqa: SLF001 - ours
        return tensor

    def take_recorded(
        self, call: OperatorCall, steps: tuple[AllocationStep, ...], held: list[Allocation | None], *, is_after: bool
    ) -> None:
        """Take temporaries, and record the call instead of what it takes on this card."""
        op_trace = self.op_trace
        if op_trace is None:
            self.take(steps, held)
            return
        op_trace.takes(call, is_after=is_after, in_backward=in_backward())
        with self._unrecorded():
            self.take(steps, held)

    def call_library(self, function: str, *args: object) -> None:
        """Take the temporaries of a library's function, and free them."""
        call = OperatorCall(self.card, LibraryFunction(function), args, {}, [])
        held: list[Allocation | None] = []
        self.take_recorded(call, temporaries_of(call).after, held, is_after=True)
        held.clear()
        if self.op_trace is not None:
            self.op_trace.ended()

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """Pause the recording of allocations, because their call is recorded."""
        if self.op_trace is None:
            yield
            return
        self.op_trace.is_paused = True
        try:
            yield
        finally:
            self.op_trace.is_paused = False

    def take(self, steps: tuple[AllocationStep, ...], held: list[Allocation | None]) -> None:
        """Run the steps of a kernel: allocate, free, or keep a workspace."""
        for step in steps:
            if isinstance(step, Workspace):
                on_engine_thread = in_backward()
                key = (step.library, on_engine_thread)
                if key not in self._workspaces:
                    self._workspaces[key] = self.block(step.nbytes)
            elif isinstance(step, OptionalWorkspace):
                counts = self.allocator.heap.statistics
                ooms, retries = counts.ooms, counts.retries
                fitted = self._fitted[in_backward()]
                held.append(step.take(fitted, self.block, torch.OutOfMemoryError))
                self.workspace_bytes = max(self.workspace_bytes, fitted[step.call])
                self.workspaces_given_up += counts.ooms - ooms
                self.workspace_retries += counts.retries - retries
            elif step < 0:
                held[-1 - step] = None
            else:
                held.append(self.block(step))

    def keep_dropout_state(self) -> None:
        """Allocate cuDNN's dropout state once for the process. Source: `get_dropout_state`, RNN.cpp."""
        if self._dropout_state is None:
            self.block(8)  # the seed
            if self.op_trace is not None:
                self.op_trace.takes(dropout_state_call(self.card), is_after=True, in_backward=False)
            with self._unrecorded():
                self._dropout_state = self.block(dropout_state_bytes(self.card))

    def begin_trial(self) -> None:
        """Forget what fitted of optional workspaces, as in a process that has run no trial."""
        for fitted in self._fitted:
            fitted.clear()
        self.workspace_bytes = 0

    def clear_workspaces(self) -> None:
        """Free libraries' workspaces."""
        self._workspaces.clear()
        if self.op_trace is not None:
            self.op_trace.cleared()

    def forget_dropout_state(self) -> None:
        """Free cuDNN's dropout state, as in a process that has not used it."""
        self._dropout_state = None


class Allocation:
    """An allocation that is freed with the last reference to it."""

    __slots__ = ("_device", "address")

    def __init__(self, device: EmulatedDevice, address: int) -> None:
        self._device = device
        self.address = address

    def __del__(self) -> None:
        self._device.free(self.address)


def _event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": STREAM, "frames": []}
