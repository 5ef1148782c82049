"""What `oomdoctor run` says to the hook, in variables of the environment.

They are read once, when torch is imported: what the program does with its environment later is its own business.
"""

from __future__ import annotations

import os


def _whole_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


DIRECTORY = os.environ.get("OOMDOCTOR_RUN_DIRECTORY", "")
"""Where reports go; made when the first is written."""

MAX_ENTRIES = _whole_number("OOMDOCTOR_RUN_MAX_ENTRIES")
"""How many events of the memory history are kept; 0 where none is recorded."""

MEMORY_BYTES = _whole_number("OOMDOCTOR_RUN_MEMORY_BYTES")
"""What PyTorch may take of each device; 0 for all of it."""
