"""Ways to run the real command, as a user would."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from oomdoctor.cli import main

ROOT = Path(__file__).parents[1]
QUICK_PYTHON = Path(__file__).with_name("quick_python")
"""Folder whose `sitecustomize` lets a Python end quickly; in the PYTHONPATH of all that tests start."""
WITHOUT_COMPILER = {"OOMDOCTOR_TEST_WITHOUT_COMPILER": "1"}
"""For the environment of programs whose optimizers shall not import torch's compiler, which takes longer than torch."""
INVOCATIONS = {
    "oomdoctor": [str(Path(sys.executable).parent / "oomdoctor")],
    "python -m oomdoctor": [sys.executable, "-m", "oomdoctor"],
}

Run = Callable[..., subprocess.CompletedProcess[str]]


def python_path(*folders: Path) -> str:
    """PYTHONPATH of a process with these folders first."""
    return os.pathsep.join(map(str, [*folders, QUICK_PYTHON]))


_PATIENCE_SECONDS = 90.0
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


def run_here(arguments: Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's answer in this process, where many questions are asked or nothing is started."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        exit_code = main([*arguments])
    return subprocess.CompletedProcess(arguments, exit_code, out.getvalue(), err.getvalue())


def interrupt_once_begun(
    folder: Path, number: int, *words: str, program: Sequence[str] = INVOCATIONS["python -m oomdoctor"]
) -> subprocess.CompletedProcess[str]:
    """Run oomdoctor, or another program, and send it the signal once a step has left a file `begun` in the folder.

    No process of it may be left.
    """
    with subprocess.Popen(
        [*program, *words],
        cwd=folder,
        env={**os.environ, "OOMDOCTOR_TEST_MARK": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (folder / "begun").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert not marked_processes(str(folder))
    return subprocess.CompletedProcess([], process.returncode, out, err)


def marked_processes(mark: str) -> list[psutil.Process]:
    """Every process whose environment has `OOMDOCTOR_TEST_MARK` as `mark`; all that a command starts inherits it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("OOMDOCTOR_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
