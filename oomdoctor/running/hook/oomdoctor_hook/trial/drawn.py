"""Numbers that trials have drawn, in memory that the probe made for them and that is gone with it.

First comes where the free part begins, and then one record after the other: what was asked for, how many bytes were
drawn, the generator's state afterwards and the numbers. A record counts once the free part begins behind it, so one
whose writer was killed is written over by the next.
"""

# ruff: noqa: PLC0415 - what is not needed yet is not imported yet

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

_HEADER = struct.Struct("<Q")
_RECORD = struct.Struct("<32sQQ")
_ALIGNMENT = 64


class Found(NamedTuple):
    """What was drawn; both are views of the shared memory.

    Attributes:
        numbers: Bytes of the numbers.
        state: Of the generator, after it.
    """

    numbers: memoryview
    state: memoryview


class Drawn:
    """What has been drawn so far, by this process or another.

    Args:
        path: Of the memory, as a file.
    """

    def __init__(self, path: str) -> None:
        import mmap

        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = memoryview(mmap.mmap(self._descriptor, 0))
        self._known: dict[bytes, Found] = {}
        self._read_until = _HEADER.size

    def find(self, key: bytes) -> Found | None:
        """What was drawn for this key of 32 bytes; None where nothing was."""
        self._read()
        return self._known.get(key)

    def keep(self, key: bytes, numbers: Any, state: bytes) -> None:  # noqa: ANN401 - whatever has bytes
        """Add what was drawn, where there is room and nobody else is adding."""
        import fcntl

        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            if self.find(key) is None:
                self._append(key, memoryview(numbers).cast("B"), state)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _append(self, key: bytes, numbers: memoryview, state: bytes) -> None:
        begin = self._read_until
        places = _places(begin, len(numbers), len(state))
        if places.end > len(self._map):
            return
        _RECORD.pack_into(self._map, begin, key, len(numbers), len(state))
        self._map[places.state : places.state + len(state)] = state
        self._map[places.numbers : places.numbers + len(numbers)] = numbers
        _HEADER.pack_into(self._map, 0, places.end)

    def _read(self) -> None:
        (end,) = _HEADER.unpack_from(self._map, 0)
        while self._read_until < end:
            key, numbers, state = _RECORD.unpack_from(self._map, self._read_until)
            places = _places(self._read_until, numbers, state)
            found = (self._map[places.numbers :][:numbers], self._map[places.state :][:state])
            self._known[key] = Found(*found)
            self._read_until = places.end


class _Places(NamedTuple):
    """Where the parts of a record begin, and where the next one does."""

    state: int
    numbers: int
    end: int


def _places(begin: int, numbers: int, state: int) -> _Places:
    first = begin + _RECORD.size
    second = -(-(first + state) // _ALIGNMENT) * _ALIGNMENT
    return _Places(first, second, -(-(second + numbers) // _ALIGNMENT) * _ALIGNMENT)
