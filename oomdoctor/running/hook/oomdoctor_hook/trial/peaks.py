"""The highest figures of a process, whatever the program makes the allocator forget."""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..guard import guarded
from .history import HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable

_FORGETS_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_FORGETS_COUNTS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")


class Peaks:
    """What the allocator has been made to forget.

    Attributes:
        allocated_bytes: The highest.
        reserved_bytes: The highest.
        retries: How often it gave back its cache to try again.
        ooms: How often it ran out.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0
        self.ooms = 0


PEAKS = Peaks()


def watch(torch: Any) -> None:
    """Note the figures each time before the program resets them."""
    for names, note in ((_FORGETS_PEAKS, _note_peaks), (_FORGETS_COUNTS, _note_counts)):
        for name in names:
            if hasattr(torch._C, name):  # noqa: SLF001
                _precede(torch, name, guarded(functools.partial(note, torch)))


def now(torch: Any) -> Peaks:
    """The figures until now."""
    _note_peaks(torch)
    found = Peaks()
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    found.allocated_bytes, found.reserved_bytes = PEAKS.allocated_bytes, PEAKS.reserved_bytes
    found.retries = PEAKS.retries + tree["num_alloc_retries"]
    found.ooms = PEAKS.ooms + tree["num_ooms"]
    return found


def _precede(torch: Any, name: str, note: Callable[[], Any]) -> None:
    original = getattr(torch._C, name)  # noqa: SLF001

    @functools.wraps(original)
    def reset(*arguments: Any, **named: Any) -> Any:
        note()
        return original(*arguments, **named)

    setattr(torch._C, name, reset)  # noqa: SLF001


def _note_peaks(torch: Any) -> None:
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    PEAKS.allocated_bytes = max(PEAKS.allocated_bytes, tree["allocated_bytes"]["all"]["peak"])
    PEAKS.reserved_bytes = max(PEAKS.reserved_bytes, tree["reserved_bytes"]["all"]["peak"])


def _note_counts(torch: Any) -> None:
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    count = tree["allocation"]["all"]
    HISTORY.offset = HISTORY.offset[0] + count["allocated"], HISTORY.offset[1] + count["freed"]
    PEAKS.retries += tree["num_alloc_retries"]
    PEAKS.ooms += tree["num_ooms"]
