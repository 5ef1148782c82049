"""Memory in which the trials of a probe keep what they draw at random, so that the next need not draw it again."""

from __future__ import annotations

import os
from typing import Final

from oomdoctor.running.host_memory import read_host_memory

_SHARE: Final = 8
"""One part in so many of the host's memory is taken at most, and only as it is filled."""

_MOST_BYTES: Final = 4 << 30


class Draws:
    """The memory. It has no place in the file system but among this process's descriptors, and ends with it.

    Attributes:
        path: Where other processes of this user find it.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("oomdoctor-draws")
        os.ftruncate(self._fd, _size_bytes())
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Give it back, once the processes that use it have ended."""
        os.close(self._fd)


def _size_bytes() -> int:
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = read_host_memory().limit_bytes or host
    return min(min(host, limit) // _SHARE, _MOST_BYTES)
