"""What is made once for the suite, also where several processes run it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def directory_of(factory: pytest.TempPathFactory) -> Path:
    """A directory of this run of the suite, the same in each of its processes."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def shared(file: Path, make: Callable[[], str]) -> str:
    """What a file holds, made once by whichever of several processes comes first."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(make())
        return file.read_text()
