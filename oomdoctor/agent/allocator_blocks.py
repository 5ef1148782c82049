"""Follow the blocks of PyTorch's caching allocator through the events of its history.

The history says what was asked for and where the block lies; the allocator hands out whole blocks. With the addresses
of all events known its rules leave nothing open: how sizes are rounded, when the rest of a free block is split off, and
that free neighbours of one segment become one. Unlike a simulator, this never chooses a block, and who uses it compares
the result with the allocator's own count. Source: `should_split` and `try_merge_blocks` in
c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from itertools import groupby
from typing import TYPE_CHECKING, Any, List  # noqa: UP035 - Python 3.8 has no other way to write it

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

AllocationTrace = List[int]  # noqa: UP006 - likewise
"""The allocator's events in order: an allocation is its bytes, a free is -1 less the allocation's position.

`STEP_END` stands between optimizer steps, where they were told apart.
"""

STEP_END = 0

SMALLEST_BLOCK = 512
"""Every request is rounded up to a multiple of this."""
LARGEST_SMALL = 1 << 20
"""Rounded requests up to here are of the small pool, and rests up to here stay with a block of the large pool."""
SMALL_SEGMENT = 2 << 20
"""Bytes that the driver is asked for where the small pool has no block."""
NO_LIMIT = (1 << 64) - 1
"""Value of `max_split_size` where it is not set: the largest number that C++ has for a size."""
DIVISIONS = 16
"""`roundup_power2_divisions` has one value for each power of two from 1 MiB on."""
_FIRST_DIVISION = LARGEST_SMALL.bit_length()


def rounded_size(requested: int, divisions: Sequence[int] = ()) -> int:
    """Return the bytes of the block that a request needs.

    Source: `round_size` and `roundup_power2_next_division`.

    Args:
        requested: Bytes that were asked for.
        divisions: Divisions between two powers of two, from 1 MiB on; nothing where none are set.
    """
    if requested < SMALLEST_BLOCK:
        return SMALLEST_BLOCK
    if divisions:
        count = divisions[min(max(requested.bit_length() - _FIRST_DIVISION, 0), DIVISIONS - 1)]
        if count > 1 and requested > SMALLEST_BLOCK * count:
            floor = 1 << (requested.bit_length() - 1)
            step = floor >> (count.bit_length() - 1)
            if requested == floor:
                return requested
            return -(-requested // step) * step if step else 2 * floor
    return -(-requested // SMALLEST_BLOCK) * SMALLEST_BLOCK


class HistoryMismatchError(Exception):
    """The history cannot be what the allocator did; the text says where."""


class AllocatorBlocks:
    """Blocks of one device, free and taken, by address.

    Args:
        settings: `allocator_settings` of a snapshot.
        segments: Segments that the allocator holds when the history begins, as a snapshot gives them.
    """

    def __init__(self, settings: Mapping[str, Any], segments: Iterable[Mapping[str, Any]] = ()) -> None:
        limit = int(settings.get("max_split_size", -1))
        self._largest_split = NO_LIMIT if limit < 0 else limit
        self._divisions = _divisions(settings.get("roundup_power2_divisions"))
        # By start: the size, and whether the block is of a kind of which the least rest is split off.
        self._free: dict[int, tuple[int, bool]] = {}
        self._starts: dict[int, int] = {}  # of free blocks, by their end
        self._taken: dict[int, tuple[int, bool]] = {}
        self._segment_starts: set[int] = set()  # blocks are not joined across borders of segments
        self._segment_ends: set[int] = set()
        self._actions = {
            "alloc": self._allocate,
            "free_requested": lambda address, _: -self._taken[address][0],
            "free_completed": lambda address, _: self._put(address, *self._taken.pop(address)),
            "segment_alloc": self._add_segment,
            "segment_free": self._remove_segment,
            # Expandable segments split off the least rest.
            "segment_map": lambda address, size: self._put(address, size, True),  # noqa: FBT003 - as it is kept
            "segment_unmap": self._unmap,
        }
        for segment in segments:
            self._take_over(segment)

    def apply(self, action: str, address: int, size: int) -> int:
        """Follow an event.

        Args:
            action: The event's; one that is about no block changes nothing.
            address: The event's.
            size: The event's, in bytes.

        Returns:
            Bytes by which the allocated bytes change: the size of the block that was taken or given back.

        Raises:
            HistoryMismatchError: The event does not fit those before it.
        """
        follow = self._actions.get(action)
        if follow is None:
            return 0
        try:
            return follow(address, size)
        except (KeyError, StopIteration):
            raise HistoryMismatchError(f"{action} of {size} bytes does not fit the events before it") from None

    def _take_over(self, segment: Mapping[str, Any]) -> None:
        address, size = segment["address"], segment["total_size"]
        is_expandable = bool(segment.get("is_expandable"))
        if not is_expandable:
            self._add_border(address, size)
        is_fine = is_expandable or size <= SMALL_SEGMENT
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                self._put(address, block["size"], is_fine)
            else:
                self._taken[address] = block["size"], is_fine
            address += block["size"]

    def _allocate(self, address: int, size: int) -> int:
        whole, is_fine = self._free.pop(address)
        needed = rounded_size(size, self._divisions)
        rest = whole - needed
        if rest < 0:
            raise KeyError(address)
        del self._starts[address + whole]
        is_split = rest >= SMALLEST_BLOCK if is_fine else needed < self._largest_split and rest > LARGEST_SMALL
        if is_split:
            self._free[address + needed] = rest, is_fine
            self._starts[address + whole] = address + needed
            whole = needed
        self._taken[address] = whole, is_fine
        return whole

    def _put(self, address: int, size: int, is_fine: bool) -> int:  # noqa: FBT001 - as it is kept
        end = address + size
        if end in self._free and not self._is_border(end):
            size += self._free.pop(end)[0]
        if address in self._starts and not self._is_border(address):
            address = self._starts.pop(address)
            size += self._free.pop(address)[0]
        self._free[address] = size, is_fine
        self._starts[address + size] = address
        return 0

    def _add_segment(self, address: int, size: int) -> int:
        self._add_border(address, size)
        return self._put(address, size, size <= SMALL_SEGMENT)

    def _add_border(self, address: int, size: int) -> None:
        self._segment_starts.add(address)
        self._segment_ends.add(address + size)

    def _is_border(self, address: int) -> bool:
        return address in self._segment_starts or address in self._segment_ends

    def _remove_segment(self, address: int, size: int) -> int:
        if self._free[address][0] != size:
            raise KeyError(address)
        del self._free[address], self._starts[address + size]
        self._segment_starts.discard(address)
        self._segment_ends.discard(address + size)
        return 0

    def _unmap(self, address: int, size: int) -> int:
        start = next(one for one, (length, _) in self._free.items() if one <= address < one + length)
        length, is_fine = self._free.pop(start)
        del self._starts[start + length]
        for piece, end in ((start, address), (address + size, start + length)):
            if end > piece:
                self._free[piece] = end - piece, is_fine
                self._starts[end] = piece
        return 0


def _divisions(setting: object) -> tuple[int, ...]:
    """Return the divisions by power of two from 1 MiB on, from a setting in MiB such as `{"1": 0, "2": 4}`."""
    if not isinstance(setting, dict):
        return ()
    found = {int(key).bit_length() - 1: int(value) for key, value in setting.items() if str(key).isdecimal() and value}
    return tuple(found.get(power, 0) for power in range(DIVISIONS)) if found else ()


# --- traces: what was asked for and given back, whatever the addresses -----------------------------------------------


def read_trace(events: Iterable[Mapping[str, Any]], step_ends: Sequence[int] = ()) -> AllocationTrace:
    """Return the trace of a history, in canonical order and without frees of blocks from before it.

    Args:
        events: The events of one device, as a snapshot gives them.
        step_ends: Allocations and frees until the end of each optimizer step; what comes after the last is left out.
    """
    positions: dict[int, int] = {}
    found: AllocationTrace = []
    allocations = 0
    relevant = [event for event in events if event["action"] in ("alloc", "free_completed")]
    ends = set(step_ends)
    for count, event in enumerate(relevant[: max(ends, default=None)]):
        if count in ends:
            found.append(STEP_END)
        address = event["addr"]
        if event["action"] == "alloc":
            positions[address] = allocations
            allocations += 1
            found.append(event["size"])
        elif address in positions:
            found.append(-1 - positions.pop(address))
    return list(canonical_order(found))


def canonical_order(events: Iterable[int]) -> Iterator[int]:
    """Yield the events, with frees that follow each other in the order of their allocations.

    No block is placed between them, so their order changes nothing; and it is no part of a step: autocast lets go of
    its casts in the order of their addresses, which are others in every process.
    """
    for is_free, events_alike in groupby(events, key=lambda event: event < 0):
        run = list(events_alike)
        yield from sorted(run, reverse=True) if is_free else run


def first_steps(trace: AllocationTrace, steps: int) -> AllocationTrace:
    """Return the trace until so many optimizer steps have ended."""
    ends = [position for position, event in enumerate(trace) if event == STEP_END]
    return trace[: ends[steps - 1]] if len(ends) >= steps else trace


def pack(trace: AllocationTrace) -> str:
    """Return a trace as text that travels quickly; empty for an empty one."""
    return b64encode(array("q", trace).tobytes()).decode("ascii")


def unpack(text: str) -> AllocationTrace:
    """Return the trace that `pack` was given.

    Raises:
        ValueError: The text is none of `pack`'s.
    """
    return list(array("q", b64decode(text)))
