"""What a GPU looks like to PyTorch: the numbers that decide memory, and where each was had from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU model.

    Attributes:
        key: Name on the command line, such as `rtx-4090`.
        name: Name as `torch.cuda.get_device_name` prints it.
        total_bytes: `torch.cuda.get_device_properties(...).total_memory` on Linux.
        total_source: Where `total_bytes` was had from.
        compute_capability: (major, minor); decides attention kernels and the cuBLAS workspace.
        sm_count: Streaming multiprocessors.
        max_threads_per_sm: Resident threads a multiprocessor takes.
        shared_memory_per_block_bytes: Opt-in maximum of shared memory a block.
        l2_bytes: Size of the L2 cache.
        context_bytes: What a process holds outside PyTorch's allocator: the CUDA context, loaded kernels, handles.
        context_source: Where `context_bytes` was had from.
    """

    key: str
    name: str
    total_bytes: int
    total_source: str
    compute_capability: tuple[int, int]
    sm_count: int
    max_threads_per_sm: int
    shared_memory_per_block_bytes: int
    l2_bytes: int
    context_bytes: int
    context_source: str

    @property
    def capacity_bytes(self) -> int:
        """Bytes that PyTorch may take: the total less the context's share."""
        return self.total_bytes - self.context_bytes
