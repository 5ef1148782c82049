"""However a probe of a command is ended, nothing of it stays but what the script itself wrote."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from command_ending import ended, prepared, reached

pytestmark = pytest.mark.null_gpu


@pytest.mark.parametrize(
    ("number", "stage", "seconds", "exit_code"),
    [
        (signal.SIGTERM, "first trial", 0.0, 130),
        (signal.SIGKILL, "first trial", 1.5, -9),
        (signal.SIGINT, "fork server imports", 0.5, 130),
        (signal.SIGKILL, "fork server imports", 1.0, -9),
        (signal.SIGKILL, "forked trial", 0.05, -9),
        (signal.SIGINT, "two trials at once", 0.05, 130),
    ],
)
def test_nothing_is_left_at_any_stage(tmp_path: Path, number: int, stage: str, seconds: float, exit_code: int) -> None:
    """A signal in the first trial, while the fork server imports, and in forked trials, leaves nothing behind."""
    left = ended(number, prepared(tmp_path), reached(stage, seconds))

    assert (left.processes, left.files) == ((), ())
    assert left.exit_code == exit_code
