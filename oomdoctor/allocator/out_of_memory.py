"""The error of an allocation that cannot be had, in PyTorch's own words.

Source: `format_size`, `reportProcessMemoryInfo` and `malloc` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from oomdoctor.allocator.heap import Heap, Request

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


def beyond_everything() -> AllocationError:
    """The error of a request of an exbibyte or more."""
    return AllocationError("CUDA out of memory. Tried to allocate more than 1EB memory.")


def rejected(requested: int) -> AllocationError:
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
