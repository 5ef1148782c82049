"""The standard streams as they really are: closed by a daemon's parent, or fed with what the user's code raised."""

from __future__ import annotations

import os
import sys

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def open_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr on the null device.

    A pipe that is opened later would otherwise get the number of one of them, and a child would take it for its own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def printable(text: str) -> str:
    """Text without the control characters that a terminal would obey; lines and tabs stay."""
    return text.translate(_CONTROL)
