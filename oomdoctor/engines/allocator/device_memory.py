"""The driver's memory and addresses, and the error when memory is out, in PyTorch's own words.

Bytes and addresses are counted as on the null GPU (`null_gpu/source/memory.c` and `virtual_memory.c`), so that both run
out of memory at the same byte and split blocks at the same addresses.

Source: `format_size`, `reportProcessMemoryInfo` and `malloc` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from oomdoctor.units import GIB, KIB, MIB, TIB

if TYPE_CHECKING:
    from oomdoctor.engines.allocator.heap import Heap, Request


PAGE_BYTES: Final = 2 * MIB
"""Size of the pages in which the driver maps device memory."""
FIRST_ADDRESS: Final = 0x7000_0000_0000
"""The lowest address, as high as a GPU's, so that addresses of this process are not mistaken for it."""
_ADDRESS_SPACE: Final = 16 * TIB


class DeviceMemory:
    """The memory of one GPU: free bytes are the total less the context's, others' and those in use.

    Args:
        total_bytes: Memory of the card.
        context_bytes: Bytes of the process before its first allocation.
        others_bytes: Bytes that other processes hold.
        first_address: The lowest address, a multiple of a page.

    Attributes:
        used_bytes: Bytes allocated, in whole pages.
        total_bytes: Memory of the card; it may be changed while memory is in use.
    """

    def __init__(
        self, total_bytes: int, context_bytes: int = 0, others_bytes: int = 0, first_address: int = FIRST_ADDRESS
    ) -> None:
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.others_bytes = others_bytes
        self.used_bytes = 0
        self._sizes: dict[int, int] = {}
        self._gap_starts = [first_address]
        self._gap_ends = [first_address + _ADDRESS_SPACE]

    @property
    def capacity_bytes(self) -> int:
        """Bytes that can be allocated: the total less the context's and others'."""
        return max(0, self.total_bytes - self.context_bytes - self.others_bytes)

    @property
    def free_bytes(self) -> int:
        """Free bytes, as `cudaMemGetInfo` reports them."""
        return max(0, self.capacity_bytes - self.used_bytes)

    @property
    def process_bytes(self) -> int:
        """Bytes of the process, as NVML reports them."""
        return self.used_bytes + self.context_bytes

    def allocate(self, size: int) -> int | None:
        """Allocate bytes and return their address, as `cudaMalloc` does; None where memory is out."""
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        return self.reserve(size) if self.charge(size) else None

    def release(self, address: int) -> None:
        """Free an allocation, as `cudaFree` does."""
        self.refund(self.unreserve(address))

    def charge(self, size: int) -> bool:
        """Allocate whole pages without an address, as `cuMemCreate` does; False where memory is out."""
        if size > self.capacity_bytes - self.used_bytes:
            return False
        self.used_bytes += size
        return True

    def refund(self, size: int) -> None:
        """Free unmapped pages, as `cuMemRelease` does."""
        self.used_bytes -= size

    def reserve(self, size: int) -> int:
        """Reserve addresses without memory at the lowest gap that is large enough, as `cuMemAddressReserve` does.

        Raises:
            MemoryError: The address space is used up, as it would be on no real machine.
        """
        starts, ends = self._gap_starts, self._gap_ends
        for index, start in enumerate(starts):
            if ends[index] - start >= size:
                self._gap_starts[index] += size
                if self._gap_starts[index] == self._gap_ends[index]:
                    del self._gap_starts[index], self._gap_ends[index]
                self._sizes[start] = size
                return start
        raise MemoryError("the simulated address space is used up")

    def unreserve(self, address: int) -> int:
        """Free addresses, as `cuMemAddressFree` does, and return the bytes reserved there."""
        size = self._sizes.pop(address)
        end = address + size
        starts, ends = self._gap_starts, self._gap_ends
        index = bisect_left(starts, address)
        if index < len(starts) and starts[index] == end:
            end = ends[index]
            del starts[index], ends[index]
        if index and ends[index - 1] == address:
            ends[index - 1] = end
        else:
            starts.insert(index, address)
            ends.insert(index, end)
        return size


EXBIBYTE: Final = 2**60
"""Bytes from which requests are refused at once."""


class AllocationError(Exception):
    """Memory is out; the text is that of PyTorch's `OutOfMemoryError`."""


def pytorch_size(size: int) -> str:
    """Format bytes as PyTorch does: exactly 1 GiB is `1024.00 MiB`."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


def more_than_an_exbibyte() -> AllocationError:
    """Return the error of a request of an exbibyte or more."""
    return AllocationError("CUDA out of memory. Tried to allocate more than 1EB memory.")


def preemptively_rejected(requested: int) -> AllocationError:
    """Return the error of a request that `throw_on_cudamalloc_oom` rejects."""
    return AllocationError(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {pytorch_size(requested)}"
    )


def out_of_memory(heap: Heap, request: Request) -> AllocationError:
    """Return the error of a request for which memory is out."""
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
