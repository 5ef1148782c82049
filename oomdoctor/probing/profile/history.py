"""The allocator's own history of what was allocated and freed, and what it held when the history began.

Source: `torch.cuda.memory._record_memory_history` and `_snapshot`, torch 2.6 to 2.15. Runs in the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """What the allocator held when recording began.

    Attributes:
        segments: As `_snapshot` gives them.
        settings: As `_snapshot` gives them; empty where that version of torch tells none.
        count: Blocks that were allocated and freed before, as `count_now` counts them.
        reserved_bytes: Bytes held from the driver.
    """

    segments: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    count: int
    reserved_bytes: int


def start_recording() -> Start:
    """Begin a new history."""
    snapshot = _snapshot()
    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled="all", context=None, stacks="python", max_entries=MOST_EVENTS
    )
    count, _ = count_now()
    device = torch.cuda.current_device()
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    return Start(segments, snapshot.get("allocator_settings") or {}, count, torch.cuda.memory_reserved())


def read_events() -> Sequence[Mapping[str, Any]]:
    """What the allocator did since recording began, oldest first."""
    traces = _snapshot()["device_traces"]
    found: Sequence[Mapping[str, Any]] = traces[torch.cuda.current_device()] if traces else ()
    return found


def stop_recording() -> None:
    """End the history, and forget it."""
    torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above


def count_now() -> tuple[int, int]:
    """How many blocks were allocated and freed up to now, and the bytes in live ones.

    The public `torch.cuda.memory_stats` says the same and takes ten times as long, at every module of every step.
    """
    stats = torch._C._cuda_memoryStats(_DEVICE)  # noqa: SLF001 - for the reason above
    blocks = stats["allocation"]["all"]
    return blocks["allocated"] + blocks["freed"], stats["allocated_bytes"]["all"]["current"]


_DEVICE = 0  # a worker sees its one device as the first


def _snapshot() -> dict[str, Any]:
    found: dict[str, Any] = torch.cuda.memory._snapshot()  # noqa: SLF001 - the only way to the events and blocks
    return found
