"""However a check is ended, nothing of any of its probes stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from running import marked_processes
from targets_for_tests import MLP, write_target

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

CONFIGURATION = 'gpu = "t4"\ncapacity = "1GiB"\ntarget-batch = 64\nbaseline = true\n' + "".join(
    f'[[check]]\nname = "{name}"\ntarget = "model.py"\n' for name in "abcd"
)
# A daemon that left the session, and a wait that only a signal ends.
STUCK = (
    MLP
    + """

import subprocess
import sys
import time

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
time.sleep(300)
"""
)
MOMENTS = (0.0, 0.3, 6.0)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PATIENCE_SECONDS = 20.0


def left(mark: str) -> list[str]:
    """What of it is still there once it had time to go."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [" ".join(process.cmdline()) for process in found if process.is_running()]


def end_at(moment: float, number: int, directory: Path) -> tuple[int, str, float, list[str]]:
    """Start a check of four entries, send a signal once two run, and return how and when it ended and what stayed."""
    mark = f"check-{os.getpid()}-{moment}-{number}"
    with subprocess.Popen(
        [sys.executable, "-m", "oomdoctor", "check", "--update", "-j", "2", "--no-cache"],
        cwd=directory,
        env={**os.environ, "OOMDOCTOR_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        begun = {process.stderr.readline() for _ in range(2)}
        assert begun == {"a: running\n", "b: running\n"}
        time.sleep(moment)
        process.send_signal(number)
        sent = time.monotonic()
        said = process.stderr.read()
    return process.returncode, said, time.monotonic() - sent, left(mark)


def test_no_signal_leaves_anything_behind(tmp_path: Path) -> None:
    """SIGINT, SIGTERM and SIGKILL end two that load or are stuck at once, and no baseline is written."""
    write_target(tmp_path, STUCK)
    (tmp_path / "oomdoctor.toml").write_text(CONFIGURATION)
    jobs = [partial(end_at, moment, number, tmp_path) for moment in MOMENTS for number in SIGNALS]
    with ThreadPoolExecutor(3) as pool:
        endings = [future.result() for future in [pool.submit(job) for job in jobs]]

    assert [ending for ending in endings if ending[3]] == []
    heard = [(said, seconds) for code, said, seconds, _ in endings if code == 130]
    assert sorted(code for code, *_ in endings) == [-signal.SIGKILL] * 3 + [130] * 6
    assert {said for said, _ in heard} == {"interrupted\n"}
    assert max(seconds for _, seconds in heard) < PATIENCE_SECONDS
    assert {path.name for path in tmp_path.iterdir()} <= {"model.py", "oomdoctor.toml", "__pycache__"}
