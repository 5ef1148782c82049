"""The summary of a job's step on GitHub: Markdown that is appended to the file which the runner names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 1024 * 1024
"""Bytes of a step's summary above which GitHub shows none of it."""

VARIABLE: Final = "GITHUB_STEP_SUMMARY"
"""Names the file, where a runner runs the step."""

_CUT: Final = "\n\n*This summary was cut: GitHub shows 1 MiB of a step.*\n"


def append(markdown: str) -> None:
    """Add a report to the step's summary, where there is one; what does not fit is cut, and said to be.

    A summary that cannot be written is no reason to lose the report: standard error says so.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return
    path = Path(name)
    try:
        held = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(fitting(markdown, LIMIT_BYTES - held))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sys.stderr.write(f"warning: the step's summary cannot be written: {reason}\n")


def fitting(markdown: str, room_bytes: int) -> str:
    """The text where it fits, else as many whole lines of it as do and a word about the rest; empty without room."""
    data = markdown.encode("utf-8", "replace")
    if len(data) <= room_bytes:
        return markdown
    room = room_bytes - len(_CUT.encode())
    if room <= 0:
        return ""
    kept = data[:room].decode("utf-8", "ignore")
    return kept[: kept.rfind("\n") + 1].rstrip("\n") + _CUT
