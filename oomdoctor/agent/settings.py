"""Settings of the agent, in variables of the environment that the parent sets.

They are read once, when this is imported: what the program does with its environment later is its own business.
"""

from __future__ import annotations

import os

_DEFAULT_STEPS = 3


def _whole_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


DIRECTORY = os.environ.get("OOMDOCTOR_RUN_DIRECTORY", "")
"""Folder of the crash reports; made when the first is written."""

MAX_ENTRIES = _whole_number("OOMDOCTOR_RUN_MAX_ENTRIES")
"""Events of the memory history that are kept; 0 where none is recorded."""

MEMORY_BYTES = _whole_number("OOMDOCTOR_RUN_MEMORY_BYTES")
"""Bytes that PyTorch may take of each device; 0 for all of it."""

CARD_BYTES = _whole_number("OOMDOCTOR_RUN_CARD_BYTES")
"""Memory of each device in all, as if it had no more; 0 for what it has."""

RESERVE_BYTES = _whole_number("OOMDOCTOR_RUN_RESERVE_BYTES")
"""Bytes of each device that are kept for others."""

CARD_OPTIONS = os.environ.get("OOMDOCTOR_RUN_CARD_OPTIONS", "").splitlines()
"""Options that asked for the card, each with its value behind it, for the crash report."""

SOCKET = os.environ.get("OOMDOCTOR_TRIAL_SOCKET", "")
"""Path of the parent's listening socket in a trial."""

STEPS = _whole_number("OOMDOCTOR_TRIAL_STEPS") or _DEFAULT_STEPS
"""Optimizer steps after which the trial ends."""

MOST_STEPS = _whole_number("OOMDOCTOR_TRIAL_MOST_STEPS") or 8
"""Steps after which the trial ends at the latest, where memory grows or the allocator had to give back its cache."""

COUNTS_BACKWARD = os.environ.get("OOMDOCTOR_TRIAL_COUNT_STEPS", "") == "backward"
"""True where each backward counts as a step, for programs without an optimizer of torch."""

DESCRIBE = os.environ.get("OOMDOCTOR_TRIAL_DESCRIBE", "") == "1"
"""True where the process is to be described for the fork server."""

LITERALS = os.environ.get("OOMDOCTOR_TRIAL_LITERALS", "")
"""Literals to set in the program's files, as JSON; see `literals`."""

_ACCUMULATION = os.environ.get("OOMDOCTOR_TRIAL_ACCUMULATION", "").split(",")
ACCUMULATION = tuple(map(int, _ACCUMULATION)) if len(_ACCUMULATION) == 3 else ()  # noqa: PLR2004
"""Micro-batch, accumulation steps and samples of an epoch, where the accumulation is to be recorded; else empty."""

REMEDIES = os.environ.get("OOMDOCTOR_TRIAL_REMEDIES", "")
"""Remedies to apply to what the program makes, as JSON; see `remedies`."""
