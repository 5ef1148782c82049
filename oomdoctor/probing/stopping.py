"""How whoever hears of an interrupt ends probes that run in other threads."""

from __future__ import annotations

import os
import threading


class Stop:
    """A word to end, given once and heard by every probe that was handed it, a waiting one included.

    Python interrupts only its main thread, and a thread that waits for its worker would wait on.

    Attributes:
        fd: Readable from the moment that the word was given.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        self._lock = threading.Lock()
        self.is_set = False

    def set(self) -> None:
        """Give the word; a second time changes nothing."""
        with self._lock:
            if not self.is_set:
                self.is_set = True
                os.close(self._write_fd)  # the end of the pipe, which every reader sees and none takes from another

    def __del__(self) -> None:
        self.set()
        os.close(self.fd)
