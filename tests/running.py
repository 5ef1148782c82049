"""Ways to run the real command, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
INVOCATIONS = {
    "oomdoctor": [str(Path(sys.executable).parent / "oomdoctor")],
    "python -m oomdoctor": [sys.executable, "-m", "oomdoctor"],
}

Run = Callable[..., subprocess.CompletedProcess[str]]

PEAK = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
"""Python for the most memory that a process has held, in KiB; `ru_maxrss` counts what its parent held before `exec`."""


def run_command(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    invocation: str = "python -m oomdoctor",
    timeout: float = 120,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run oomdoctor as a user would, in a process of its own."""
    return subprocess.run(
        [*INVOCATIONS[invocation], *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
