"""What the probe asks for, in variables of the environment, read when the hook begins.

What the program does with its environment later is its own business.
"""

from __future__ import annotations

import os

_DEFAULT_STEPS = 3


def _steps() -> int:
    text = os.environ.get("OOMDOCTOR_TRIAL_STEPS", "")
    return int(text) if text.isdigit() and int(text) > 0 else _DEFAULT_STEPS


SOCKET = os.environ.get("OOMDOCTOR_TRIAL_SOCKET", "")
"""Path of the probe's listening socket."""

STEPS = _steps()
"""Optimizer steps after which the trial ends."""

DESCRIBE = os.environ.get("OOMDOCTOR_TRIAL_DESCRIBE", "") == "1"
"""Whether the process shall be described for the fork server."""

DRAWS = os.environ.get("OOMDOCTOR_TRIAL_DRAWS", "")
"""Path of the memory for what trials draw; empty where there is none."""
