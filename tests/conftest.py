"""What every test shares: a calm environment, and ways to run the real command."""

from __future__ import annotations

import compileall
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from running import ROOT, Run, python_path, run_command, run_here

pytest_plugins = ["pytester"]

# Processes that share a core would wait for each other's threads in OpenMP's loops: twice the time, under load thrice.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without bytecode each of the thousand processes that import torch would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["PYTHONPATH"] = os.pathsep.join([python_path(), *filter(None, [os.environ.get("PYTHONPATH")])])

# What an example takes depends on what else the machine does; the tests of speed measure it themselves.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

_LOUD = (
    "FORCE_COLOR",
    "NO_COLOR",
    "GITHUB_ACTIONS",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_WORKSPACE",
    "PY_COLORS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
)


_NULL_GPU_FIXTURES = {"null_gpu", "null_environment"}
_NO_COMPILER = "no-compiler-for-a-test-that-does-not-use-the-fixture-null_gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that uses the null GPU, itself or through a fixture."""
    for item in items:
        if _NULL_GPU_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("null_gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Take the compiler from a test without the mark `null_gpu`: it cannot use a null GPU unseen, built or not."""
    may_use_it = "null_gpu_if_any" in getattr(item, "fixturenames", ())
    if item.get_closest_marker("null_gpu") is None and not may_use_it:
        os.environ.setdefault("CC", _NO_COMPILER)
    elif os.environ.get("CC") == _NO_COMPILER:
        del os.environ["CC"]


@pytest.fixture(scope="session")
def null_gpu() -> None:
    """Let a test use the null GPU, and mark it `null_gpu`."""


@pytest.fixture(scope="session")
def null_gpu_if_any() -> None:
    """Let a test use the null GPU where it runs, and recorded figures where it does not, such as on a CPU build."""


@pytest.fixture(scope="session", autouse=True)
def _heeded_interrupts() -> None:
    """A suite that was started in the background ignores what a terminal sends, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _compiled_agent() -> None:
    """Compile the agent, which writes no bytecode itself, once and not in each program that it is injected into."""
    compileall.compile_dir(ROOT / "oomdoctor" / "agent", quiet=1)


@pytest.fixture(autouse=True)
def _calm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour, 80 columns, nothing of the developer's own settings."""
    for name in [*_LOUD, *(name for name in os.environ if name.startswith("OOMDOCTOR_") and "TEST" not in name)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def oomdoctor(tmp_path: Path) -> Run:
    """Run oomdoctor in an empty directory."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return run_command(arguments, cwd=tmp_path, **options)

    return run


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[Any]:
    """Servers of workers for the whole session: each has imported torch once."""
    from oomdoctor.multi_card.workers import WorkerPool
    from oomdoctor.trial.process import CancelToken

    with WorkerPool(CancelToken()) as pool:
        yield pool


@contextmanager
def _forking(pool: Any) -> Iterator[None]:
    """Have the probes of this process take their workers from a pool."""
    from oomdoctor.integrations import sizing
    from oomdoctor.multi_card import buckets
    from oomdoctor.multi_card import pool as cases
    from oomdoctor.trial import probe, worker_process
    from oomdoctor.trial.process import CancelToken

    class Shared(nullcontext[Any]):
        """A pool of workers that goes on after the one who asked for it has left."""

        def __init__(self, _: CancelToken) -> None:
            super().__init__(self)

        def start(self, environment: Mapping[str, str], requests_fd: int, answers_fd: int) -> Any:
            # Another value for each test would mean another server for each.
            same = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
            return pool.start(same, requests_fd, answers_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "start_interpreter", Shared(CancelToken()).start)
        for module in (buckets, cases, probe, sizing):
            patch.setattr(module, "WorkerPool", Shared)
        sizing._sizer.cache_clear()
        yield
        sizing._sizer.cache_clear()


@pytest.fixture(scope="module")
def forked_workers(worker_pool: Any) -> Iterator[None]:
    """Fork the workers of a module's probes from one that has imported torch: a tenth of the time, and the same.

    `tests/multi_card/test_workers.py` holds that a forked worker is what a fresh one is. Commands in processes of their
    own start theirs as ever.
    """
    with _forking(worker_pool):
        yield


@pytest.fixture
def oomdoctor_here(tmp_path: Path, worker_pool: Any) -> Iterator[Run]:
    """Run oomdoctor in this process and in an empty directory, with forked workers."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return run_here(arguments, tmp_path, **options)

    with _forking(worker_pool):
        yield run


@pytest.fixture
def null_environment() -> Callable[[int], dict[str, str]]:
    """A worker's environment with a null GPU of so many bytes."""
    from oomdoctor.engines.choice import choose_engine

    def environment(memory_bytes: int) -> dict[str, str]:
        engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=memory_bytes, base=os.environ)
        return engine.environment

    return environment
