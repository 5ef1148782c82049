"""The driver's memory and addresses, and the error when they do not suffice, in PyTorch's own words.

This is the null GPU's account (`engines/null_gpu/source/memory.c` and `virtual_memory.c`), so that a simulated and a
null GPU run out of memory at the same byte and cut blocks at the same places.

Source: `format_size`, `reportProcessMemoryInfo` and `malloc` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from oomdoctor.units import GIB, KIB, MIB, TIB

if TYPE_CHECKING:
    from oomdoctor.engines.allocator.heap import Heap, Request


PAGE_BYTES: Final = 2 * MIB
"""The driver maps device memory in pages of this size."""
FIRST_ADDRESS: Final = 0x7000_0000_0000
"""Where addresses begin: as high as a GPU's, and no address of this process is likely to be taken for one."""
_ADDRESS_SPACE: Final = 16 * TIB


class DeviceMemory:
    """The memory of one GPU: free bytes are the total less the context's and what is in use.

    Args:
        total_bytes: Memory of the card.
        context_bytes: What the process holds before its first allocation.
        first_address: Where addresses begin, a multiple of a page.

    Attributes:
        used_bytes: What is allocated, in whole pages.
        total_bytes: Memory of the card; it may be changed, and then what is in use stays.
    """

    __slots__ = ("_gap_ends", "_gap_starts", "_sizes", "context_bytes", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int, context_bytes: int = 0, first_address: int = FIRST_ADDRESS) -> None:
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.used_bytes = 0
        self._sizes: dict[int, int] = {}
        self._gap_starts = [first_address]
        self._gap_ends = [first_address + _ADDRESS_SPACE]

    @property
    def capacity_bytes(self) -> int:
        """What there is to allocate: the total less the context's."""
        return max(0, self.total_bytes - self.context_bytes)

    @property
    def free_bytes(self) -> int:
        """What `cudaMemGetInfo` says is free."""
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def process_bytes(self) -> int:
        """What NVML says that the process holds."""
        return self.used_bytes + self.context_bytes

    def allocate(self, size: int) -> int | None:
        """As `cudaMalloc`: an address, or None where memory is out."""
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        return self.reserve(size) if self.charge(size) else None

    def release(self, address: int) -> None:
        """As `cudaFree`."""
        self.refund(self.unreserve(address))

    def charge(self, size: int) -> bool:
        """As `cuMemCreate`: take whole pages without an address; False where memory is out."""
        if size > self.capacity_bytes - self.used_bytes:
            return False
        self.used_bytes += size
        return True

    def refund(self, size: int) -> None:
        """As `cuMemRelease` of what nothing maps any more."""
        self.used_bytes -= size

    def reserve(self, size: int) -> int:
        """As `cuMemAddressReserve`: addresses without memory, at the lowest place that has room.

        Raises:
            MemoryError: The address space is used up, as it would be on no real machine.
        """
        starts, ends = self._gap_starts, self._gap_ends
        for index, start in enumerate(starts):
            if ends[index] - start >= size:
                self._narrow(index, size)
                self._sizes[start] = size
                return start
        raise MemoryError("the simulated address space is used up")

    def unreserve(self, address: int) -> int:
        """As `cuMemAddressFree`; the bytes that were reserved there."""
        size = self._sizes.pop(address)
        self._widen(address, address + size)
        return size

    def _narrow(self, index: int, size: int) -> None:
        self._gap_starts[index] += size
        if self._gap_starts[index] == self._gap_ends[index]:
            del self._gap_starts[index], self._gap_ends[index]

    def _widen(self, start: int, end: int) -> None:
        """Add a gap; it joins those that it touches."""
        starts, ends = self._gap_starts, self._gap_ends
        index = bisect_left(starts, start)
        if index < len(starts) and starts[index] == end:
            end = ends[index]
            del starts[index], ends[index]
        if index and ends[index - 1] == start:
            ends[index - 1] = end
        else:
            starts.insert(index, start)
            ends.insert(index, end)


EXBIBYTE: Final = 2**60
"""Requests from here on are refused before anything is looked at."""


class AllocationError(Exception):
    """Memory is out; the text is what PyTorch's `OutOfMemoryError` would say."""


def pytorch_size(size: int) -> str:
    """Bytes as PyTorch prints them: exactly 1 GiB is `1024.00 MiB`."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


def more_than_an_exbibyte() -> AllocationError:
    """The error of a request of an exbibyte or more."""
    return AllocationError("CUDA out of memory. Tried to allocate more than 1EB memory.")


def preemptively_rejected(requested: int) -> AllocationError:
    """The error of a request that `throw_on_cudamalloc_oom` turns away."""
    return AllocationError(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {pytorch_size(requested)}"
    )


def out_of_memory(heap: Heap, request: Request) -> AllocationError:
    """The error of a request that nothing could make room for."""
    memory, allocated = heap.memory, heap.statistics.current(2)
    allowed = "" if heap.limit is None else f"{pytorch_size(heap.limit)} allowed; "
    unused = heap.statistics.reserved_bytes.current - allocated
    return AllocationError(
        f"CUDA out of memory. Tried to allocate {pytorch_size(request.segment_size)}. "
        f"GPU 0 has a total capacity of {pytorch_size(memory.total_bytes)} of which "
        f"{pytorch_size(memory.free_bytes)} is free. "
        f"Including non-PyTorch memory, this process has {pytorch_size(memory.process_bytes)} memory in use. {allowed}"
        f"Of the allocated memory {pytorch_size(allocated)} is allocated by PyTorch, "
        f"and {pytorch_size(unused)} is reserved by PyTorch but unallocated. {_advice(heap)}"
    )


def _advice(heap: Heap) -> str:
    if heap.settings.expandable and heap.rules.knows_address_space:
        return (
            "expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ), "
            "expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the "
            "number of streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / "
            "expandable_segments_reserve_by_class."
        )
    return (
        "If reserved but unallocated memory is large try setting "
        f"{heap.rules.variable}=expandable_segments:True to avoid fragmentation.  "
        f"See documentation for Memory Management  ({heap.rules.page})"
    )
