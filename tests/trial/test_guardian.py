"""The guardian: nothing that the worker started outlives the probe, however well it hides."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from oomdoctor.trial import process as guardian

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


def _alive(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _start(mark: str, seconds: str) -> tuple[subprocess.Popen[str], int, int]:
    lifeline_read, lifeline_write = os.pipe()
    report_read, report_write = os.pipe()
    numbers = map(str, (lifeline_read, report_write, report_write))
    process = subprocess.Popen(
        [sys.executable, guardian.__file__, *numbers, "", sys.executable, "-c", DAEMON, seconds],
        pass_fds=(lifeline_read, report_write),
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(lifeline_read)
    os.close(report_write)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process, lifeline_write, report_read


def test_a_cut_lifeline_ends_a_daemon_too() -> None:
    """A process that forked twice and left the session is killed when the lifeline is cut."""
    mark = f"cut-{time.monotonic_ns()}"
    process, lifeline, report = _start(mark, "300")
    assert len(_alive(mark)) == 3

    os.close(lifeline)

    assert process.wait(20) == 0
    assert _alive(mark) == []
    assert os.read(report, 100) == b""
    os.close(report)
    process.communicate()


def test_the_end_of_the_worker_is_reported_and_its_daemon_ended() -> None:
    """When the worker ends by itself, the guardian reports its return code and kills what it left."""
    mark = f"end-{time.monotonic_ns()}"
    process, lifeline, report = _start(mark, "0")

    assert process.wait(20) == 0
    assert os.read(report, 100) == b'\n{"event": "died", "return_code": 0}\n'
    assert _alive(mark) == []
    for fd in (lifeline, report):
        os.close(fd)
    process.communicate()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_guardian_itself_is_not_ended_by_a_polite_signal(name: str) -> None:
    """SIGINT, SIGTERM and SIGHUP sent to the guardian do not make it let go of the worker."""
    mark = f"polite-{name}-{time.monotonic_ns()}"
    process, lifeline, report = _start(mark, "300")

    process.send_signal(getattr(__import__("signal"), name))
    time.sleep(0.2)

    assert process.poll() is None
    os.close(lifeline)
    assert process.wait(20) == 0
    assert _alive(mark) == []
    os.close(report)
    process.communicate()
