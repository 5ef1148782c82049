"""Let PyTorch's backward threads come to rest before Python ends, on a null GPU.

After the last backward its thread still lets go of a few Python objects. Where Python has begun to end by then, it ends
that thread (up to Python 3.13, inside C++ code that cannot be left that way) and the process dies of SIGABRT. On a GPU
the last steps of a program wait for the device, which gives the thread its time; on a null GPU nothing waits.
"""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

from .guard import guarded

_THREADS = Path("/proc/self/task")
_NAME = "(pt_autograd"
_LONGEST_SECONDS = 2.0
_PAUSE_SECONDS = 0.001
_LOOKS = 2


def watch() -> None:
    """Wait at the end of a process on a null GPU; registered early, so that it runs after what the program does."""
    if "OOMDOCTOR_NULL_NAME" in os.environ:
        atexit.register(guarded(_wait))


def _wait() -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    looks = 0
    while looks < _LOOKS and time.monotonic() < deadline:
        states = _states()
        if not states:
            return
        time.sleep(_PAUSE_SECONDS)  # a thread that waits for Python's lock gets it now
        looks = looks + 1 if set(_states()) <= {"S"} else 0


def _states() -> list[str]:
    """The kernel's letter for each backward thread: S is asleep, and R has work to do or waits for a processor."""
    found = []
    for thread in _THREADS.iterdir():
        try:
            before, _, after = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has ended
            continue
        if _NAME in before:
            found.append(after.split()[0])
    return found
