"""A block from the driver, whatever has to be given back for it.

Source: `malloc` and `alloc_block` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.allocator.expandable import grow
from oomdoctor.allocator.out_of_memory import out_of_memory, rejected
from oomdoctor.allocator.releasing import collect_garbage, release_enough

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.allocator.blocks import Block
    from oomdoctor.allocator.heap import Heap, Request


def obtain(heap: Heap, request: Request, release_everything: Callable[[], None]) -> Block:
    """Get a block that a request fits into.

    Free blocks are not searched again after some were given back, as in PyTorch.

    Args:
        heap: The allocator's state.
        request: What no free block could serve.
        release_everything: Waits for all streams and gives back all that can be.

    Raises:
        AllocationError: Memory is out.
    """
    if heap.collects_garbage:
        collect_garbage(heap)
    block = _ask_driver(heap, request)
    if block is None and release_enough(heap, request):
        block = _ask_driver(heap, request)
    if block is None:
        release_everything()
        heap.statistics.retries += 1
        block = _ask_driver(heap, request)
    if block is None:
        heap.statistics.ooms += 1
        raise out_of_memory(heap, request)
    return block


def _ask_driver(heap: Heap, request: Request) -> Block | None:
    """A new block, in no pool; None where the driver has none, or the limit allows none."""
    if heap.limit is not None and heap.held_bytes + request.segment_size > heap.limit:
        return None
    _check_early(heap, request)
    if heap.settings.expandable:
        return grow(heap, request)
    address = heap.memory.allocate(request.segment_size)
    return None if address is None else heap.add_segment(address, request)


def _check_early(heap: Heap, request: Request) -> None:
    """Turn away what would go beyond the fraction that the settings name, whichever was set later."""
    allowed = heap.settings.memory_fraction * heap.card_bytes
    if heap.settings.rejects_early and heap.held_bytes + request.segment_size > allowed:
        heap.statistics.rejections += 1
        raise rejected(request.requested)
