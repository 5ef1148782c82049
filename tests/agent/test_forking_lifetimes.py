"""Whoever ends, nothing of a forked program is left, and signals reach it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from forking import ForkServer, describe, fork_server, plain_environment, wait_for
from running import marked_processes

_TREE = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    os._exit(0)
os.wait()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def description() -> dict:
    """Of a process that has imported torch."""
    return describe("import torch", plain_environment())


@pytest.fixture
def server(description: dict) -> Iterator[ForkServer]:
    """A server for each test."""
    with fork_server(description, description["environment"], mark=str(uuid.uuid4())) as running:
        assert running.answer["ready"], running.answer
        yield running


def left(server: ForkServer) -> list[psutil.Process]:
    """What there is besides the server; forks have its mark, and what programs start inherits that of theirs."""
    return [process for process in marked_processes(server.mark) if process.pid != server.process.pid]


def start(server: ForkServer, folder: Path, code: str) -> subprocess.Popen[bytes]:
    """Start a program in a fork, and wait until it has written its id."""
    (folder / "program.py").write_text(code)
    environment = server.forked | {"OOMDOCTOR_TEST_MARK": server.mark}
    command = [server.python, "program.py", "pid"]
    with (folder / "said").open("w") as said:
        started = subprocess.Popen(command, cwd=folder, env=environment, stdout=said)
    assert wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
    assert not server.refusals()
    return started


def test_a_killed_proxy_takes_all_with_it(server: ForkServer, tmp_path: Path) -> None:
    """After SIGKILL neither the program nor its children, daemons among them, are left; and the server serves on."""
    proxy = start(server, tmp_path, _TREE)
    assert len(left(server)) == 6  # proxy, keeper, program, its daemon, and two that sleep

    proxy.kill()
    proxy.wait()

    assert server.wait_until_idle()
    assert left(server) == []
    (tmp_path / "next.py").write_text("print('served')")
    assert server.run([tmp_path / "next.py"], fork=True).stdout == "served\n"


def test_a_stopped_program_is_killed_with_its_proxy(server: ForkServer, tmp_path: Path) -> None:
    """A program that has stopped itself, as a measured one does, goes as well."""
    stops = (
        "import os, signal, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\nos.kill(os.getpid(), signal.SIGSTOP)"
    )
    proxy = start(server, tmp_path, stops)
    assert proxy.poll() is None

    proxy.kill()
    proxy.wait()

    assert server.wait_until_idle()
    assert left(server) == []


@pytest.mark.parametrize("end", ["kill", "unlink"])
def test_nothing_outlives_the_server(server: ForkServer, end: str, tmp_path: Path) -> None:
    """When the server is killed or its socket is taken away, programs are killed and their proxies end so too."""
    sleeps = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"
    proxy = start(server, tmp_path, sleeps)
    assert len(left(server)) == 3

    if end == "kill":
        server.process.kill()
    else:
        server.socket.unlink()

    assert proxy.wait(20) == -signal.SIGKILL
    assert wait_for(lambda: left(server) == [])
    assert server.process.wait(20) == (-signal.SIGKILL if end == "kill" else 0)


def test_daemons_outlive_a_program_that_ends_by_itself(server: ForkServer, tmp_path: Path) -> None:
    """As without us: what a program leaves behind on purpose is not killed at its end."""
    code = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nopen('pid', 'w').write('1')"
    proxy = start(server, tmp_path, code)

    assert proxy.wait(20) == 0
    assert server.wait_until_idle()
    assert [process.name() for process in left(server)] == ["sleep"]
    left(server)[0].kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_signals_reach_the_program(server: ForkServer, number: signal.Signals, tmp_path: Path) -> None:
    """A handler of the program's runs; without one both end by the signal."""
    handles = f"""
import os, signal, sys, time
signal.signal({int(number)}, lambda *_: (print("handled", flush=True), signal.signal({int(number)}, signal.SIG_DFL)))
open(sys.argv[1], "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""
    proxy = start(server, tmp_path, handles)
    proxy.send_signal(number)
    assert wait_for(lambda: (tmp_path / "said").read_text() == "handled\n")

    time.sleep(0.1)
    proxy.send_signal(number)

    assert proxy.wait(20) == -number
    assert server.wait_until_idle()


def test_the_server_ends_with_its_parent(description: dict, tmp_path: Path) -> None:
    """A server whose parent is killed does not stay."""
    import json
    import sys

    from forking import _SERVER

    (tmp_path / "description.json").write_text(json.dumps(description | {"modules": ["torch"]}))
    mark = str(uuid.uuid4())
    command = [sys.executable, str(_SERVER), str(tmp_path / "socket"), str(tmp_path / "description.json")]
    with subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"],
        env=os.environ | {"OOMDOCTOR_TEST_MARK": mark},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        assert b'"ready": true' in parent.stdout.readline()
        assert len(marked_processes(mark)) == 2
        parent.kill()

    assert wait_for(lambda: marked_processes(mark) == [])
