"""Follow the blocks of PyTorch's caching allocator through the events of its history.

The history says what was asked for and where the block lies; the allocator hands out whole blocks. With the addresses
of all events known its rules leave nothing open: how sizes are rounded, when the rest of a free block is split off, and
that free neighbours of one segment become one. Unlike a simulator, this never chooses a block, and who uses it compares
the result with the allocator's own count. Source: `should_split` and `try_merge_blocks` in
c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MIN_BLOCK = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_FIRST_DIVISION = _SMALL.bit_length()
_MOST_DIVISIONS = 16
_UNLIMITED = 1 << 64


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
        self._largest_split = _UNLIMITED if limit < 0 else limit
        self._divisions = _divisions(settings.get("roundup_power2_divisions"))
        # By start: the size, and whether the block is of a kind of which the least rest is split off.
        self._free: dict[int, tuple[int, bool]] = {}
        self._starts: dict[int, int] = {}  # of free blocks, by their end
        self._taken: dict[int, tuple[int, bool]] = {}
        self._segment_starts: set[int] = set()  # blocks are not joined across borders of segments
        self._segment_ends: set[int] = set()
        self._actions = {
            "alloc": self._allocate,
            "free_requested": self._request_free,
            "free_completed": self._complete_free,
            "segment_alloc": self._add_segment,
            "segment_free": self._remove_segment,
            "segment_map": self._map,
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
        is_fine = is_expandable or size <= _SMALL_SEGMENT
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                self._put(address, block["size"], is_fine)
            else:
                self._taken[address] = block["size"], is_fine
            address += block["size"]

    def _allocate(self, address: int, size: int) -> int:
        whole, is_fine = self._free.pop(address)
        needed = self._rounded(size)
        rest = whole - needed
        if rest < 0:
            raise KeyError(address)
        del self._starts[address + whole]
        is_split = rest >= _MIN_BLOCK if is_fine else needed < self._largest_split and rest > _SMALL
        if is_split:
            self._free[address + needed] = rest, is_fine
            self._starts[address + whole] = address + needed
            whole = needed
        self._taken[address] = whole, is_fine
        return whole

    def _request_free(self, address: int, _size: int) -> int:
        return -self._taken[address][0]

    def _complete_free(self, address: int, _size: int) -> int:
        self._put(address, *self._taken.pop(address))
        return 0

    def _put(self, address: int, size: int, is_fine: bool) -> None:  # noqa: FBT001 - as it is kept
        end = address + size
        if end in self._free and not self._is_border(end):
            size += self._free.pop(end)[0]
        if address in self._starts and not self._is_border(address):
            address = self._starts.pop(address)
            size += self._free.pop(address)[0]
        self._free[address] = size, is_fine
        self._starts[address + size] = address

    def _add_segment(self, address: int, size: int) -> int:
        self._add_border(address, size)
        self._put(address, size, size <= _SMALL_SEGMENT)
        return 0

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

    def _map(self, address: int, size: int) -> int:
        self._put(address, size, True)  # noqa: FBT003 - expandable segments split off the least rest
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

    def _rounded(self, size: int) -> int:
        if size < _MIN_BLOCK:
            return _MIN_BLOCK
        if self._divisions:
            count = self._divisions[min(max(size.bit_length() - _FIRST_DIVISION, 0), _MOST_DIVISIONS - 1)]
            if count > 1 and size > _MIN_BLOCK * count:
                return _rounded_up(size, (1 << (size.bit_length() - 1)) // count)
        return _rounded_up(size, _MIN_BLOCK)


def _rounded_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _divisions(setting: object) -> tuple[int, ...]:
    """Return the divisions by power of two from 1 MiB on, from a setting in MiB such as `{"1": 0, "2": 4}`."""
    if not isinstance(setting, dict):
        return ()
    found = {int(key).bit_length() - 1: int(value) for key, value in setting.items() if str(key).isdecimal() and value}
    return tuple(found.get(power, 0) for power in range(_MOST_DIVISIONS)) if found else ()
