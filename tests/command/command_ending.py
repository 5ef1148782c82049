"""Probes of a command that are ended from outside, and what is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from command_running import BATCH, PYTHON, small_copy

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PATIENCE_SECONDS = 5.0
"""How long after the probe's end something of it may still be there."""

STAGES = ("first trial", "fork server imports", "forked trial", "two trials at once")
"""Where a probe may be when it is ended, in order; see `Probe.stage`."""

_LONGEST_SECONDS = 120.0
_MARK = "TEST_MARK_OF_A_PROBE"  # not a variable of ours, which processes of ours take out of their environment

_OUTPUT = "answer.json"
_OF_TORCH = "torchinductor_"
"""What an optimizer of torch makes in the directory for temporary files, in any script."""

WORDS = (
    *("probe", "--target-batch", "64", "--capacity", "1GiB", "--engine", "null", "--json", "--quiet"),
    *("-o", _OUTPUT, "--", PYTHON, "with_children.py", *BATCH),
)
"""The probe that is ended where no other is named."""

# What a training script may leave running: a child, one in another session, and a daemon.
_WITH_CHILDREN = """
import os
import subprocess
import sys

import plain_loop

SLEEP = ["sleep", "300"]
subprocess.Popen(SLEEP)
subprocess.Popen(SLEEP, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", SLEEP)
    os._exit(0)
plain_loop.main()
"""


@dataclass(frozen=True)
class Left:
    """A probe that was ended, and what is there afterwards.

    Attributes:
        stage: How far it had come.
        seconds: How long it had run.
        exit_code: As Python counts them: negative for a signal.
        processes: Commands that still run.
        files: What is new in the working directory and in the one for temporary files.
    """

    stage: str
    seconds: float
    exit_code: int
    processes: tuple[str, ...]
    files: tuple[str, ...]


def prepared(directory: Path) -> Path:
    """A working directory with a script that starts processes of its own."""
    small_copy(directory)
    (directory / "with_children.py").write_text(_WITH_CHILDREN)
    return directory


def ended(
    number: int, directory: Path, until: Callable[[Probe], object], words: Sequence[str] = WORDS, output: str = _OUTPUT
) -> Left:
    """Start a probe of the script, send it a signal once `until` returns, and look at what is left.

    Args:
        number: The signal.
        directory: Made by `prepared`.
        until: Waits; it is called with the running probe.
        words: What is asked instead.
        output: The file that it writes; nothing for none.
    """
    before = {path.name for path in directory.iterdir()}
    with _short_directory() as temporary:
        probe = Probe(directory, temporary, words)
        until(probe)
        stage, seconds = probe.stage, probe.seconds
        exit_code = probe.end(number)
        processes = probe.left()
        new = {path.name for path in directory.iterdir()} - before - {"__pycache__"}
        if exit_code == 0 and output:  # it came to its end before the signal
            new.remove(output)
        kept = {path.name for path in temporary.iterdir() if not path.name.startswith(_OF_TORCH)}
        files = (*sorted(new), *sorted(kept))
    return Left(stage, seconds, exit_code, processes, files)


def reached(stage: str, seconds: float = 0.0) -> Callable[[Probe], None]:
    """A wait until a probe has come so far, or is over, and then a little longer."""

    def wait(probe: Probe) -> None:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while probe.stage not in {stage, "over"}:
            assert time.monotonic() < deadline, f"it is at {probe.stage}"
            time.sleep(0.002)
        time.sleep(seconds)

    return wait


class Probe:
    """A running probe.

    Args:
        directory: Where the script is.
        temporary: Its directory for temporary files, with a short name.
        words: What is asked.
    """

    def __init__(self, directory: Path, temporary: Path, words: Sequence[str]) -> None:
        self._temporary = temporary
        self._mark = f"{os.getpid()}-{temporary.name}"
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oomdoctor", *words],
            cwd=directory,
            env={**os.environ, "TMPDIR": str(temporary), _MARK: self._mark},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self._begun

    @property
    def stage(self) -> str:
        """How far it has come, by what it has in its directory for temporary files."""
        if self._process.poll() is not None:
            return "over"
        names = {path.name for path in self._temporary.glob("oomdoctor-*/*")}
        trials = sorted(name for name in names if name.startswith("trial-"))
        if len(trials) > 1:
            return "two trials at once"
        if trials:
            return "first trial" if trials == ["trial-1"] else "forked trial"
        if "forks" in names:
            return "between trials"
        return "fork server imports" if "description.json" in names else "start"

    def end(self, number: int) -> int:
        """Send a signal and wait for its end."""
        self._process.send_signal(number)
        return self._process.wait(60)

    def left(self) -> tuple[str, ...]:
        """What still runs of it once it had time to go."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := list(self._marked())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return tuple(found)

    def _marked(self) -> Iterator[str]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield " ".join(process.cmdline()) or process.name()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


@contextmanager
def _short_directory() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    path = Path(tempfile.mkdtemp(prefix="end-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
