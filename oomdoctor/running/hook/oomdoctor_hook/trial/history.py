"""What the allocator did, event by event, as it records it itself; without stacks, so it costs next to nothing.

The peaks are never reset: they are the program's own. How much was allocated between two borders follows from the
events between them.
"""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import frames
from ..guard import note_failure
from .blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .phases import Border

_MOST_EVENTS = 1_000_000
_WITHOUT_BLOCK = ("oom", "snapshot", "end")


class Part(NamedTuple):
    """What was allocated between two borders.

    Attributes:
        border: Where it begins.
        peak_bytes: Most.
        lowest_bytes: Least.
        end_bytes: When it ended.
        allocations: How many there were.
    """

    border: Border
    peak_bytes: int
    lowest_bytes: int
    end_bytes: int
    allocations: int


class History:
    """The allocator's history in this process.

    Attributes:
        is_recorded: Whether it is recorded, and nobody else has changed what is.
        device: Index of the device.
        offset: Allocations and frees that the program has had the allocator forget.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self.is_recorded = False
        self.device = 0
        self.offset = (0, 0)

    def begin(self, torch: Any, device: int) -> None:
        """Record from now on; what the program itself asks to record ends it."""
        self._torch = torch
        self.device = device
        torch.cuda.memory._record_memory_history(  # noqa: SLF001
            "all", context=None, stacks="python", max_entries=_MOST_EVENTS
        )
        frames.FRAMES.undo.append(self._lose)
        frames.notice_others(torch)
        self.is_recorded = True

    def position(self) -> tuple[int, int, int]:
        """Allocations and frees until now, and the bytes allocated; zeros before CUDA is initialised."""
        if self._torch is None or not self._torch.cuda.is_initialized():
            return 0, 0, 0
        tree = self._torch._C._cuda_memoryStats(self.device)  # noqa: SLF001
        count = tree["allocation"]["all"]
        allocations, frees = self.offset
        return allocations + count["allocated"], frees + count["freed"], tree["allocated_bytes"]["all"]["current"]

    def read(self, borders: Sequence[Border]) -> list[Part]:
        """What was allocated from each border to the next, the last one until now.

        Returns:
            Nothing where the history is not complete, or does not end with what the allocator itself counts.
        """
        if not self.is_recorded:
            return []
        end = self.position()
        snapshot = self._torch.cuda.memory._snapshot()  # noqa: SLF001
        events = snapshot["device_traces"][self.device]
        blocks = Blocks(snapshot.get("allocator_settings") or {})
        stops = [*(border[2:] for border in borders[1:]), end]
        try:
            found = _measure(events, stops, blocks)
            return [Part(border, *figures) for border, figures in zip(borders, found)]  # noqa: B905 - not in 3.8
        except (KeyError, MismatchError) as error:
            note_failure("history", error)
            return []

    def _lose(self) -> None:
        self.is_recorded = False


HISTORY = History()


class MismatchError(Exception):
    """What the events say is not what the allocator counts."""


def _measure(
    events: Iterable[dict[str, Any]], stops: Sequence[tuple[int, int, int]], blocks: Blocks
) -> Iterator[tuple[int, int, int, int]]:
    """The most, the least, the last bytes and the allocations up to each stop."""
    allocations = frees = live = begun = 0
    peak = lowest = 0
    waiting = iter([*stops, (-1, -1, -1)])
    stop = next(waiting)
    apply = blocks.apply
    for event in [*events, {"action": "end"}]:
        while allocations == stop[0] and frees == stop[1]:
            if live != stop[2]:
                raise MismatchError(f"{live} bytes where the allocator has {stop[2]}")
            yield peak, lowest, live, allocations - begun
            peak = lowest = live
            begun = allocations
            stop = next(waiting)
        action = event["action"]
        if action in _WITHOUT_BLOCK:
            continue
        live += apply(action, event["addr"], event["size"])
        if action == "alloc":
            allocations += 1
            if live > peak:  # noqa: PLR1730 - a call for each of a million events
                peak = live
        elif action == "free_requested":
            frees += 1
            if live < lowest:  # noqa: PLR1730 - likewise
                lowest = live
    if stop[0] != -1:
        raise MismatchError(f"{allocations} allocations and {frees} frees, and a border at {stop[:2]}")
