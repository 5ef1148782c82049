"""Limits of time that mean the same on a slow machine: Python work of a known length is timed beside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_YARDSTICK_SECONDS = 0.03
"""What `_yardstick` takes on the machine that the limits are written for."""


def _yardstick() -> float:
    """The processor's seconds that a fixed piece of Python takes now."""
    started = time.process_time()
    found = {str(number): [number] for number in range(50_000)}
    assert len(found) == 50_000
    return time.process_time() - started


@contextmanager
def within(seconds: float, what: object = "it") -> Iterator[None]:
    """Fails where what it holds takes more of the processor's time than these seconds of the machine written for.

    Args:
        seconds: The limit.
        what: What is timed, for the message.
    """
    started = time.process_time()
    yield
    taken = time.process_time() - started
    if taken >= seconds:  # the yardstick is laid only where it decides
        slower = max(_yardstick() for _ in range(3)) / _YARDSTICK_SECONDS
        assert taken < seconds * slower, f"{what}: {taken:.2f} s, on a machine {slower:.1f} times slower than meant"
