"""Host memory that runs short shall not end the worker that matters: another one offers itself first."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST: Final = "1000"


def give_way() -> None:
    """Be the first that the kernel ends when the host's memory is out; where there is no such file, it chooses."""
    with contextlib.suppress(OSError):
        _SCORE.write_text(_FIRST, encoding="ascii")
