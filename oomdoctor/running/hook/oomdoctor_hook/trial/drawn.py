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
    """What was drawn.

    Attributes:
        begin: Where the numbers begin in the memory.
        state: Of the generator, after it.
    """

    begin: int
    state: bytes


class Drawn:
    """What has been drawn so far, by this process or another.

    It is read and written as a file: to map it would take a fault for each of its pages.

    Args:
        path: Of the memory.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._known: dict[bytes, Found] = {}
        self._read_until = _HEADER.size

    def find(self, key: bytes) -> Found | None:
        """What was drawn for this key of 32 bytes; None where nothing was."""
        self._read()
        return self._known.get(key)

    def copy(self, found: Found, target: Any) -> None:  # noqa: ANN401 - whatever has bytes
        """Copy the numbers to where the program wants them.

        Raises:
            OSError: They are not all there.
        """
        rest, begin = memoryview(target).cast("B"), found.begin
        while rest:
            done = os.preadv(self._descriptor, [rest], begin)
            if not done:
                raise OSError("the memory ends before its numbers")
            rest, begin = rest[done:], begin + done

    def keep(self, key: bytes, numbers: Any, state: bytes) -> None:  # noqa: ANN401 - as above
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
        if places.end > self._size:
            return
        self._write(_RECORD.pack(key, len(numbers), len(state)), begin)
        self._write(state, places.state)
        self._write(numbers, places.numbers)
        self._write(_HEADER.pack(places.end), 0)

    def _write(self, data: bytes | memoryview, begin: int) -> None:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(self._descriptor, rest, begin)
            rest, begin = rest[done:], begin + done

    def _read(self) -> None:
        (end,) = _HEADER.unpack(os.pread(self._descriptor, _HEADER.size, 0))
        while self._read_until < end:
            key, numbers, state = _RECORD.unpack(os.pread(self._descriptor, _RECORD.size, self._read_until))
            places = _places(self._read_until, numbers, state)
            self._known[key] = Found(places.numbers, os.pread(self._descriptor, state, places.state))
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
