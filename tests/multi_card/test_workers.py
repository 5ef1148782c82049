"""Workers that are forked from a server are what fresh ones are, end as they do, and leave nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from targets_for_tests import MLP, write_target

from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Trial
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.process import CancelToken
from oomdoctor.trial.worker_answers import LoadedTarget
from oomdoctor.trial.worker_process import WorkerStarter

pytestmark = pytest.mark.null_gpu

GIB = 2**30
DAEMON = """
import subprocess
import sys

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
"""

Environment = Callable[[int], dict[str, str]]
Open = Callable[..., WorkerTrialSource]
Children = Callable[[str], list[psutil.Process]]


@pytest.fixture
def stop() -> CancelToken:
    """What the pool's waits are ended by."""
    return CancelToken()


@pytest.fixture
def pool(stop: CancelToken) -> Iterator[WorkerPool]:
    """A pool without a worker."""
    with WorkerPool(stop) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path, null_environment: Environment) -> Open:
    """Make a source of trials of a target; it is to be closed."""

    def opened(start: WorkerStarter | None, *, memory_bytes: int = GIB, text: str = MLP) -> WorkerTrialSource:
        name = write_target(tmp_path, text)
        request = ProbeRequest(name, tmp_path, target_batch=64, engine="null")
        reference = parse_reference(name, directory=tmp_path)
        return WorkerTrialSource(request, reference, null_environment(memory_bytes), start=start)

    return opened


@pytest.fixture
def children() -> Children:
    """Find the processes that this test has started and whose command line has a word."""
    of_others = {*psutil.Process().children(recursive=True)}  # such as the servers that other tests of this process use

    def find(name: str) -> list[psutil.Process]:
        found = []
        for process in {*psutil.Process().children(recursive=True)} - of_others:
            with suppress(psutil.NoSuchProcess):  # which a zombie is, too
                if any(name in word for word in process.cmdline()):
                    found.append(process)
        return found

    return find


def appears(children: Children, name: str) -> bool:
    """Whether a process with the word is there before long: on a loaded machine it may not have its own words yet."""
    deadline = time.monotonic() + 10
    while not (found := children(name)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(found)


def trial_of(source: WorkerTrialSource) -> tuple[LoadedTarget, Trial]:
    """One trial, without its time."""
    with source:
        loaded = source.load()
        trial = source.run(8, micro_steps=2, allowed_bytes=source.capacity_bytes)
    return loaded, replace(trial, seconds=0.0)


def test_a_forked_worker_answers_as_a_fresh_one(pool: WorkerPool, source: Open, children: Children) -> None:
    """What is loaded and every figure of a trial is the same, on each of two cards that one server forks for."""
    for memory_bytes in (GIB, 3 * GIB):
        forked = trial_of(source(pool.start, memory_bytes=memory_bytes))
        assert forked == trial_of(source(None, memory_bytes=memory_bytes))
        assert forked[0].capacity_bytes == memory_bytes
    assert len(children("worker_server")) == 2  # the server and its guardian


def test_a_worker_of_another_environment_has_another_server(
    pool: WorkerPool, source: Open, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    """What torch reads while it is imported may differ between workers, and each has its own."""
    monkeypatch.setenv("TORCH_LOGS", "-all")
    quiet = trial_of(source(pool.start))
    monkeypatch.delenv("TORCH_LOGS")
    assert quiet == trial_of(source(pool.start))
    assert len(children("worker_server")) == 4


@pytest.mark.parametrize("setting", ["expandable_segments:True", "max_split_size_mb:128,roundup_power2_divisions:4"])
def test_a_setting_of_the_allocator_needs_no_other_server(
    setting: str, pool: WorkerPool, source: Open, monkeypatch: pytest.MonkeyPatch, children: Children
) -> None:
    """PyTorch reads it at the first allocation, so that a forked worker with it answers as a fresh one does."""
    plain = trial_of(source(pool.start))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", setting)
    forked = trial_of(source(pool.start))
    assert forked[1].peak_reserved_bytes != plain[1].peak_reserved_bytes
    assert forked == trial_of(source(None))
    assert len(children("worker_server")) == 2


def test_nothing_stays_of_a_worker_that_is_closed(pool: WorkerPool, source: Open, children: Children) -> None:
    """A daemon that left the worker's session is gone when `close` returns; the server goes on."""
    with source(pool.start, text=MLP + DAEMON) as opened:
        opened.load()
        assert children("time.sleep(300)")
    assert children("time.sleep(300)") == []
    assert children("worker_server")


def test_nothing_stays_of_a_pool_that_is_closed(stop: CancelToken, source: Open, children: Children) -> None:
    """Its servers end, and so does a worker that nobody closed."""
    with WorkerPool(stop) as pool:
        source(pool.start, text=MLP + DAEMON).load()
    assert children("worker_server") == []
    assert children("time.sleep(300)") == []


def test_a_crash_of_a_forked_worker_is_told_as_one(pool: WorkerPool, source: Open) -> None:
    """The signal is named and the end of the output shown; the next worker of the same server is sound."""
    crash = "\n\nprint('before the end', flush=True)\nimport os\nos.kill(os.getpid(), 11)\n"
    opened = source(pool.start, text=MLP + crash)
    with opened, pytest.raises(NoAnswerError, match="ended by SIGSEGV") as caught:
        opened.load()
    assert "before the end" in str(caught.value.details)
    assert trial_of(source(pool.start))[1].peak_allocated_bytes


def test_an_exit_of_a_forked_worker_is_told_as_one(pool: WorkerPool, source: Open) -> None:
    """Code that ends the process is the target's fault."""
    text = MLP + "\n\nimport os\nos._exit(7)\n"
    with source(pool.start, text=text) as opened, pytest.raises(TargetError, match="exit code 7"):
        opened.load()


def test_a_worker_is_a_fresh_interpreter_where_its_server_is_gone(
    pool: WorkerPool, source: Open, children: Children
) -> None:
    """A server that was ended, for want of memory for example, does not end the next probe."""
    with source(pool.start) as before:
        before.load()
    (server,) = [each for each in children("worker_server") if "process.py" not in "".join(each.cmdline())]
    server.kill()
    with source(pool.start) as after:
        after.load()
        assert appears(children, "oomdoctor.trial.worker")


def test_a_worker_on_a_real_gpu_is_a_fresh_interpreter(pool: WorkerPool, children: Children) -> None:
    """Where the environment has no card to play, nothing is forked."""
    requests, answers = os.pipe()
    worker = pool.start(os.environ, requests, answers)
    assert appears(children, "oomdoctor.trial.worker")
    assert children("worker_server") == []
    worker.close()
    for descriptor in (requests, answers):
        os.close(descriptor)


def test_a_wait_for_a_server_ends_when_it_is_told_to(pool: WorkerPool, stop: CancelToken, source: Open) -> None:
    """An interrupt is heard while torch is imported."""
    stop.set()
    with source(pool.start) as opened, pytest.raises(KeyboardInterrupt):
        opened.load()
