"""A model of the allocator's free blocks, which tells how large the block is that each allocation got.

The history says what was asked for, and where the block lies. Its size is what was asked for rounded up, or the whole
free block where the allocator does not split off the rest. Unlike the simulator in `oomdoctor.allocator`, this never
chooses a block: it follows what was chosen. That it is right is checked against the allocator's own count at every
mark; where it is not, there is no profile. Source: `try_merge_blocks` in c10/cuda/CUDACachingAllocator.cpp, torch 2.6
to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.allocator.rounding import DIVISIONS, LARGEST_SMALL, NO_LIMIT, is_split, rounded_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class UnexplainedError(Exception):
    """The history cannot be what the allocator did; the text says where."""


class Heap:
    """Free blocks by address.

    Args:
        segments: What the allocator holds from the driver, as `torch.cuda.memory._snapshot` gives it.
        settings: The allocator's settings, from the same.
    """

    def __init__(self, segments: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        self._free: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._first: set[int] = set()  # where segments begin and end, across which nothing is joined
        self._last: set[int] = set()
        largest_split = int(settings.get("max_split_size", -1))
        self._largest_split = NO_LIMIT if largest_split < 0 else largest_split
        self._divisions = _divisions(settings.get("roundup_power2_divisions"))
        self._expandable: list[tuple[int, int]] = []
        for segment in segments:
            self._take_over(segment)

    def allocate(self, address: int, requested: int) -> int:
        """Take the block that begins at `address`; its bytes."""
        available = self._free.pop(address, None)
        size = rounded_size(requested, self._divisions)
        if available is None or available < size:
            raise UnexplainedError(f"{requested} bytes were allocated where the model has {available} free ones")
        del self._ends[address + available]
        if not self._is_split(address, size, available):
            return available
        if available > size:
            self._put(address + size, available - size)
        return size

    def release(self, address: int, size: int) -> None:
        """Give a block back; it joins free neighbours of its own segment."""
        before = self._ends.get(address)
        if before is not None and not self._is_border(address):
            size += self._take(before)
            address = before
        end = address + size
        if end in self._free and not self._is_border(end):
            size += self._take(end)
        self._put(address, size)

    def add_segment(self, address: int, size: int) -> None:
        """A segment came from the driver; neighbours in other segments are no neighbours."""
        self._note_segment(address, size)
        self._put(address, size)

    def remove_segment(self, address: int, size: int) -> None:
        """A segment went back to the driver."""
        if self._free.get(address) != size:
            raise UnexplainedError("a segment was given back that is not free")
        self._take(address)
        self._first.discard(address)
        self._last.discard(address + size)

    def map(self, address: int, size: int) -> None:
        """Pages of an expandable segment came from the driver."""
        self._expandable.append((address, address + size))
        self.release(address, size)

    def unmap(self, address: int, size: int) -> None:
        """Pages of an expandable segment went back; what is left of the free block around them stays."""
        start = next((begin for begin, length in self._free.items() if begin <= address < begin + length), None)
        if start is None:
            raise UnexplainedError("pages were given back that are not free")
        end = start + self._take(start)
        if start < address:
            self._put(start, address - start)
        if address + size < end:
            self._put(address + size, end - address - size)

    def _take_over(self, segment: Mapping[str, Any]) -> None:
        address, size = segment["address"], segment["total_size"]
        if segment.get("is_expandable"):
            self._expandable.append((address, address + size))
        else:
            self._note_segment(address, size)
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                self._put(address, block["size"])
            address += block["size"]

    def _note_segment(self, address: int, size: int) -> None:
        self._first.add(address)
        self._last.add(address + size)

    def _is_border(self, address: int) -> bool:
        return address in self._first or address in self._last

    def _put(self, address: int, size: int) -> None:
        self._free[address] = size
        self._ends[address + size] = address

    def _take(self, address: int) -> int:
        size = self._free.pop(address)
        del self._ends[address + size]
        return size

    def _is_split(self, address: int, size: int, available: int) -> bool:
        fine = size <= LARGEST_SMALL or any(begin <= address < end for begin, end in self._expandable)
        return is_split(available - size, size, small=fine, largest_split=self._largest_split)


def _divisions(setting: object) -> tuple[int, ...]:
    """Divisions by power of two, from a setting such as `{"1": 0, "2": 4}` whose keys are MiB."""
    if not isinstance(setting, dict):
        return ()
    found = {int(key).bit_length() - 1: int(value) for key, value in setting.items() if str(key).isdecimal() and value}
    return tuple(found.get(power, 0) for power in range(DIVISIONS)) if found else ()
