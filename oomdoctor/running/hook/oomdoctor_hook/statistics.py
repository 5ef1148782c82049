"""The allocator's own figures, in bytes."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

from typing import Any

_KEPT = ("allocated_bytes", "reserved_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes")


def step_statistics(torch: Any, device: int) -> dict[str, int]:
    """Give what a step leaves behind, and the highest until now.

    The peaks are not reset between steps: they are the program's own figures too.
    """
    # The tree as the allocator gives it: `torch.cuda.memory_stats` flattens and sorts it, which takes far longer.
    tree = torch._C._cuda_memoryStats(device)  # noqa: SLF001
    allocated, reserved = tree["allocated_bytes"]["all"], tree["reserved_bytes"]["all"]
    return {
        "device": device,
        "allocated_bytes": allocated["current"],
        "reserved_bytes": reserved["current"],
        "peak_allocated_bytes": allocated["peak"],
        "peak_reserved_bytes": reserved["peak"],
    }


def device_statistics(torch: Any, device: int) -> dict[str, Any]:
    """Give what the allocator counted on one device, and the device's name and size."""
    tree = torch._C._cuda_memoryStats(device)  # noqa: SLF001
    found: dict[str, Any] = {"index": device}
    for name in _KEPT:
        counts = tree.get(name, {}).get("all", {})
        found[name] = counts.get("current")
        found["peak_" + name] = counts.get("peak")
    found["num_alloc_retries"] = tree.get("num_alloc_retries")
    found["num_ooms"] = tree.get("num_ooms")
    try:
        found["name"] = torch.cuda.get_device_name(device)
        found["free_bytes"], found["total_bytes"] = torch.cuda.mem_get_info(device)
    except Exception:  # noqa: BLE001 - the device may be beyond answering
        found["name"] = found["free_bytes"] = found["total_bytes"] = None
    return found
