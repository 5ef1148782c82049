"""What the driver has to give: bytes, in pages, and addresses.

This is the null GPU's account (`devices/null_gpu/source/memory.c` and `virtual_memory.c`), so that a simulated and a
null GPU run out of memory at the same byte and cut blocks at the same places.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from oomdoctor.units import MIB, TIB

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
