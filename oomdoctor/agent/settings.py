"""Settings of the agent, read from the environment once.

They are read once, when torch is imported: what the program does with its environment later is its own business.

What the program does with its environment later is its own business.
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


_DEFAULT_STEPS = 3


def _step_count() -> int:
    text = os.environ.get("OOMDOCTOR_TRIAL_STEPS", "")
    return int(text) if text.isdigit() and int(text) > 0 else _DEFAULT_STEPS


SOCKET = os.environ.get("OOMDOCTOR_TRIAL_SOCKET", "")
"""Path of the probe's listening socket."""

STEPS = _step_count()
"""Optimizer steps after which the trial ends."""

DESCRIBE = os.environ.get("OOMDOCTOR_TRIAL_DESCRIBE", "") == "1"
"""Whether the process shall be described for the fork server."""

DRAWS = os.environ.get("OOMDOCTOR_TRIAL_DRAWS", "")
"""Path of the memory for what trials draw; empty where there is none."""
