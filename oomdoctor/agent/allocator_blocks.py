"""Follow the blocks of PyTorch's caching allocator through the events of its history.

With the addresses of all events known, its rules leave nothing open: how sizes are rounded, when a free block is split,
and that free neighbours of one segment become one. Source: `CUDACachingAllocator.cpp` of torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import Any

_MIN_BLOCK = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_UNLIMITED = 1 << 62


class AllocatorBlocks:
    """The blocks of one device, from the first event on.

    Args:
        settings: `allocator_settings` of a snapshot.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        limit = settings.get("max_split_size", -1)
        self._max_split = limit if limit >= 0 else _UNLIMITED
        divisions = settings.get("roundup_power2_divisions") or {}
        by_size = sorted((int(size), count) for size, count in divisions.items())
        self._divisions = [count for _, count in by_size] if any(count > 1 for _, count in by_size) else []
        self._free: dict[int, tuple[int, bool]] = {}  # by start: the size, and whether the least remainder is split off
        self._starts: dict[int, int] = {}  # of free blocks, by their end
        self._taken: dict[int, tuple[int, bool]] = {}
        self._segments: set[int] = set()
        self._actions = {
            "alloc": self._allocate,
            "free_requested": self._request_free,
            "free_completed": self._complete_free,
            "segment_alloc": self._add_segment,
            "segment_free": self._remove_segment,
            "segment_map": self._map,
            "segment_unmap": self._unmap,
        }

    def apply(self, action: str, address: int, size: int) -> int:
        """Follow an event.

        Returns:
            Bytes by which what is allocated changes.

        Raises:
            KeyError: The event does not fit those before it.
        """
        follow = self._actions.get(action)
        return follow(address, size) if follow is not None else 0

    def _allocate(self, address: int, size: int) -> int:
        whole, is_fine = self._free.pop(address)
        del self._starts[address + whole]
        needed = self._round(size)
        rest = whole - needed
        is_split = rest >= _MIN_BLOCK if is_fine else needed < self._max_split and rest > _SMALL
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
        after = self._free.pop(address + size, None) if address + size not in self._segments else None
        if after is not None:
            size += after[0]
        if address not in self._segments and address in self._starts:
            before = self._starts.pop(address)
            size += self._free.pop(before)[0]
            address = before
        self._free[address] = size, is_fine
        self._starts[address + size] = address

    def _add_segment(self, address: int, size: int) -> int:
        self._segments.add(address)
        self._put(address, size, size <= _SMALL_SEGMENT)
        return 0

    def _remove_segment(self, address: int, size: int) -> int:
        self._segments.discard(address)
        del self._free[address], self._starts[address + size]
        return 0

    def _map(self, address: int, size: int) -> int:
        self._put(address, size, True)  # noqa: FBT003 - expandable segments split off the least remainder
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

    def _round(self, size: int) -> int:
        if size < _MIN_BLOCK:
            return _MIN_BLOCK
        if self._divisions:
            rank = size.bit_length() - 1
            divisions = self._divisions[min(max(rank - 20, 0), len(self._divisions) - 1)]
            if divisions > 1 and size > _MIN_BLOCK * divisions:
                return _round_up(size, (1 << rank) // divisions)
        return -(-size // _MIN_BLOCK) * _MIN_BLOCK


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
