"""Facts out of the numbers that one message prints, and those that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.results import Facts, ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def facts_from(
    printed: Mapping[str, int | None], processes: Sequence[ProcessMemory] = (), *, own_line: bool = False
) -> Facts:
    """Build facts.

    Args:
        printed: Numbers by the name of their field; what is missing or None is not known.
        processes: Processes that the message lists by number.
        own_line: Whether the message has the sentence about its own process.
    """
    allocated = printed.get("allocated_bytes")
    reserved, unallocated = _reserved(printed)
    process = printed.get("process_bytes")
    return Facts(
        gpu_index=printed.get("gpu_index"),
        tried_bytes=printed.get("tried_bytes"),
        total_bytes=printed.get("total_bytes"),
        free_bytes=printed.get("free_bytes"),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        reserved_unallocated_bytes=unallocated,
        process_bytes=process,
        non_pytorch_bytes=None if process is None or reserved is None else max(0, process - reserved),
        allowed_bytes=printed.get("allowed_bytes"),
        private_pool_bytes=printed.get("private_pool_bytes"),
        mps_other_bytes=printed.get("mps_other_bytes"),
        mps_max_bytes=printed.get("mps_max_bytes"),
        other_processes=tuple(processes),
        own_pid=None if own_line else _own_pid(processes, allocated, unallocated),
    )


def _reserved(printed: Mapping[str, int | None]) -> tuple[int | None, int | None]:
    """Reserved, and reserved but unallocated; versions of PyTorch print the one or the other."""
    allocated = printed.get("allocated_bytes")
    reserved = printed.get("reserved_bytes")
    unallocated = printed.get("reserved_unallocated_bytes")
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    elif unallocated is None and allocated is not None and reserved is not None:
        unallocated = max(0, reserved - allocated)
    return reserved, unallocated


def _own_pid(processes: Sequence[ProcessMemory], allocated: int | None, unallocated: int | None) -> int | None:
    """Tell which of the processes is the one that prints.

    In a container the driver's numbers are the host's, so that PyTorch does not find itself in the list. Only the
    process that allocated can hold that much, as long as there is one such process.
    """
    if allocated is None or unallocated is None:
        return None
    large = [
        process.pid
        for process in processes
        if process.used_bytes is not None and process.used_bytes >= allocated + unallocated
    ]
    return large[0] if len(large) == 1 else None
