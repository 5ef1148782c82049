"""The end of what a child process printed, however much it was."""

from __future__ import annotations

import os
import threading
from collections import deque

_CHUNK = 65536
_KEPT_BYTES = 65536
_LONGEST_LINE = 500


class OutputTail:
    """Drains a pipe in a thread, so that its writer never blocks, and keeps the end.

    Attributes:
        write_fd: For the child's stdout and stderr; close it here once the child has it.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._chunks: deque[bytes] = deque()
        self._kept_bytes = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self, lines: int) -> str:
        """The last `lines` lines; of an endless one its end."""
        kept = b"".join(tuple(self._chunks)).decode(errors="replace").splitlines()
        cut = (line if len(line) <= _LONGEST_LINE else f"...{line[-_LONGEST_LINE:]}" for line in kept[-lines:])
        return "\n".join(cut)

    def close(self) -> None:
        """Wait for the writers to end; call after they have."""
        self._thread.join(timeout=1)

    def _drain(self) -> None:
        while chunk := os.read(self._read_fd, _CHUNK):
            self._chunks.append(chunk)
            self._kept_bytes += len(chunk)
            while self._kept_bytes - len(self._chunks[0]) >= _KEPT_BYTES:
                self._kept_bytes -= len(self._chunks.popleft())
        os.close(self._read_fd)
