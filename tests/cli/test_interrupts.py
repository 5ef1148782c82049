"""However a probe is ended, nothing of it stays: no process, no half-written file."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from running import marked_processes
from targets_for_tests import MLP, write_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow, pytest.mark.timeout(900)]

MOMENTS = int(os.environ.get("OOMDOCTOR_TEST_MOMENTS", "20"))
"""`make interrupts` tries 200."""
AT_ONCE = 4
LONGEST_SECONDS = 8.0

# What a user's code may leave running: a child, and a daemon that left the session.
WITH_CHILDREN = (
    MLP
    + """

import os
import subprocess
import sys

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
subprocess.Popen(SLEEP)
subprocess.Popen(SLEEP, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, SLEEP)
    os._exit(0)
"""
)


def _wait_until_gone(mark: str, seconds: float = 20.0) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [" ".join(process.cmdline()) for process in left if process.is_running()]


def _before_handlers(exit_code: int, said: str) -> int:
    """Return the code of an interrupt while modules are imported, which CPython 3.11 forgets where `exec` meets it.

    `dataclass` calls `exec`; then Python prints the interrupt and exits with 1, instead of ending by its signal.
    """
    interrupted = exit_code == 1 and said.rstrip().endswith("KeyboardInterrupt") and "<frozen importlib" in said
    return -signal.SIGINT if interrupted else exit_code


def _end_at(moment: float, number: int, directory: Path, mark: str) -> tuple[int, list[str], list[str]]:
    """Start a probe, send it a signal at `moment`, and return its exit code, processes left and files left."""
    before = {path.name for path in directory.iterdir()}
    output = f"{mark}.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "oomdoctor",
            "probe",
            "model.py",
            "--target-batch",
            "64",
            "--capacity",
            "1GiB",
            "--engine",
            "null",
            "--json",
            "-o",
            output,
            "--quiet",
        ],
        cwd=directory,
        env={**os.environ, "OOMDOCTOR_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(moment)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    exit_code = _before_handlers(process.returncode, said)
    left = _wait_until_gone(mark)
    files = [path.name for path in directory.iterdir() if path.name.startswith((f".{mark}", mark))]
    assert before <= {path.name for path in directory.iterdir()}
    for name in files:
        json.loads((directory / name).read_text())
    return exit_code, left, [name for name in files if name != output]


def _moments() -> Iterator[tuple[float, int]]:
    generator = random.Random(20261120)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    for index in range(MOMENTS):  # one in each of as many equal parts
        part = (index + generator.random()) / MOMENTS
        yield part * LONGEST_SECONDS, numbers[index % len(numbers)]


def test_no_signal_at_any_moment_leaves_anything_behind(tmp_path: Path) -> None:
    """SIGINT, SIGTERM and SIGKILL at random moments all through a probe leave no process and no half-written file."""
    write_target(tmp_path, WITH_CHILDREN)

    def end(job: tuple[int, tuple[float, int]]) -> tuple[int, list[str], list[str]]:
        index, (moment, number) = job
        return _end_at(moment, number, tmp_path, f"moment-{os.getpid()}-{index}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        endings = list(pool.map(end, enumerate(_moments())))

    assert [ending for ending in endings if ending[1] or ending[2]] == []
    # Too late is a finished probe; too early is before Python has put its handlers in place.
    assert {code for code, _, _ in endings} <= {0, 130, -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL}
    assert sum(code == 130 for code, _, _ in endings) > MOMENTS // 4
