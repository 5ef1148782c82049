"""How marked tests take part in sessions: under xdist, with `-x`, with coverage and time limits, and as they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pytest_runs import PytestRun, run_once, run_pytest, write_files

pytestmark = pytest.mark.null_gpu

_SETTINGS = """
    [pytest]
    gpu_memory_gpu = rtx-4090
    gpu_memory_limit = 200 MiB
"""

_WARNING_FREE = """
    filterwarnings = error
"""

_MANY = """
    import os
    import time
    from pathlib import Path

    import covered
    import pytest

    first, second = (pytest.mark.xdist_group(name) for name in ("first", "second"))


    @pytest.fixture(scope="session")
    def process(worker_id):
        return os.getpid(), worker_id


    @first
    def test_waits_for_the_other_worker():
        deadline = time.monotonic() + 60
        while len(list(Path().glob(".coverage.*"))) < 2:  # its own, and that of its process on a null GPU
            assert time.monotonic() < deadline
            time.sleep(0.05)


    @pytest.mark.gpu_memory
    @pytest.mark.parametrize(
        "mib", [pytest.param(100, marks=first), pytest.param(150, marks=second), pytest.param(250, marks=first)]
    )
    def test_sizes(process, mib, record_property):
        record_property("pid", os.getpid())
        record_property("worker", process[1])
        assert process[0] == os.getpid()
        covered.on_the_gpu(mib) if process[1] == "gw0" else covered.on_another_gpu(mib)


    @second
    @pytest.mark.parametrize("number", range(3))
    def test_elsewhere(process, number):
        assert process[0] == os.getpid()
        assert "LD_PRELOAD" not in os.environ
        assert covered.here() == 2
"""

_COVERED = """
    def on_the_gpu(mib):
        import torch

        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda").shape


    def on_another_gpu(mib):
        import torch

        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda").shape


    def here():
        return 2


    def apart():
        return 3


    if __name__ == "__main__":
        apart()
"""


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """A suite on two workers of xdist, of which one ends before the other starts its process on the null GPU."""
    files = {"pytest_ini": _SETTINGS + _WARNING_FREE, "covered": _COVERED, "test_many": _MANY}
    options = ("-n", "2", "--dist", "loadgroup", "--gpu-memory-report", "--cov=covered", "--cov-report=term-missing")
    return run_once(tmp_path_factory, "distributed", files, *options)


def test_xdist_reports_every_test(distributed: PytestRun) -> None:
    """Under xdist each test is reported once, with its outcome and its peak."""
    outcomes = {name: distributed.outcome(name) for name in distributed.cases}
    assert outcomes == {
        "test_waits_for_the_other_worker": "passed",
        "test_sizes[100]": "passed",
        "test_sizes[150]": "passed",
        "test_sizes[250]": "failure",
        **dict.fromkeys((f"test_elsewhere[{number}]" for number in range(3)), "passed"),
    }, distributed.output
    assert "the peak of 250.00 MiB is 50.00 MiB (25.0 %) over the limit" in distributed.text("test_sizes[250]")
    assert "150.00 MiB   200.00 MiB    75 %  test_many.py::test_sizes[150]" in distributed.output


def test_xdist_workers_have_a_process_each(distributed: PytestRun) -> None:
    """Each worker runs its marked tests in one process of its own, which knows the worker's name."""
    found = {name: distributed.properties(name) for name in distributed.cases if "sizes" in name}
    pids = {properties["worker"]: properties["pid"] for properties in found.values()}
    assert all(pids[properties["worker"]] == properties["pid"] for properties in found.values())
    assert set(pids) == {"gw0", "gw1"}


def test_coverage_under_xdist_is_of_all_processes(distributed: PytestRun) -> None:
    """pytest-cov counts what ran on the null GPUs and in the workers, in one that had ended before as well."""
    assert _lines_missed(distributed) == "19, 23"


def _lines_missed(run: PytestRun) -> str:
    line = next(line for line in run.section("tests coverage").splitlines() if line.startswith("covered.py"))
    return line.partition("%")[2].strip()


_FIRST_FAILURE = """
    import pytest


    @pytest.fixture(scope="module")
    def wide():
        yield
        raise ValueError("the wide fixture's end")


    @pytest.mark.gpu_memory
    def test_first(wide):
        import torch

        torch.empty(1, device="cuda")


    def test_second():
        assert False


    @pytest.mark.gpu_memory
    def test_third(wide):
        pass
"""


def test_exitfirst_stops(tmp_path: Path) -> None:
    """With `-x` a failure here ends it all, and fixtures that live on in the other process are torn down."""
    run = run_pytest(write_files(tmp_path, pytest_ini=_SETTINGS, test_first=_FIRST_FAILURE), "-x")
    assert list(run.cases) == ["test_first", "test_second"]
    assert "ValueError: the wide fixture's end" in run.output
    assert "1 failed, 1 passed, 1 error" in run.output


_COVERING = """
    import subprocess
    import sys
    import time

    import covered
    import pytest


    def test_apart():
        measured = [sys.executable, "-m", "coverage", "run", "--parallel-mode", "--include=covered.py", "covered.py"]
        subprocess.run(measured, check=True)


    @pytest.mark.gpu_memory
    def test_gpu():
        assert covered.on_the_gpu(1) == (1 << 20,)


    def test_here():
        assert covered.here() == 2


    @pytest.mark.gpu_memory
    @pytest.mark.timeout(1)
    def test_slow():
        time.sleep(60)


    @pytest.mark.gpu_memory
    def test_ends_the_session():
        pytest.exit("that is enough")


    def test_never():
        pass
"""


@pytest.fixture(scope="module")
def covered(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """A suite with coverage and a time limit, which one of its tests ends."""
    files = {"pytest_ini": _SETTINGS, "covered": _COVERED, "test_covering": _COVERING}
    options = ("-W", "error", "--cov=covered", "--cov-report=term-missing", "-k", "not ends")
    return run_once(tmp_path_factory, "covered", files, *options)


def test_coverage_counts_what_ran_on_the_null_gpu(covered: PytestRun) -> None:
    """pytest-cov counts what ran here, on the null GPU, and in a process that a test had started before."""
    assert _lines_missed(covered) == "9-11"


def test_time_limit_holds_on_the_null_gpu(covered: PytestRun) -> None:
    """pytest-timeout ends a test on the null GPU, from when that test starts and not its process."""
    assert "Timeout (>1.0s) from pytest-timeout" in covered.text("test_slow")
    assert covered.outcome("test_gpu") == "passed"


def test_exit_ends_the_session(tmp_path: Path) -> None:
    """`pytest.exit` in a test on a null GPU ends the whole session with its reason."""
    run = run_pytest(
        write_files(tmp_path, pytest_ini=_SETTINGS, covered=_COVERED, test_covering=_COVERING), "-k", "ends or never"
    )
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert "Exit: that is enough" in run.output
    assert "test_never" not in run.cases


_WAITING = """
    import os
    import time
    from pathlib import Path

    import pytest


    @pytest.fixture
    def cleaned():
        yield
        Path("cleaned").touch()


    @pytest.mark.gpu_memory
    def test_waits(cleaned):
        Path("pid").write_text(str(os.getpid()))
        time.sleep(120)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_session(tmp_path: Path, number: signal.Signals) -> None:
    """A session that is interrupted or killed leaves no process, and an interrupted one tears its fixtures down."""
    write_files(tmp_path, pytest_ini=_SETTINGS, test_waits=_WAITING)
    with subprocess.Popen([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, stdin=subprocess.DEVNULL) as session:
        pid = _wait_for_pid(tmp_path / "pid")
        os.kill(session.pid, number)
        session.wait(60)
    _wait_until_gone(pid)
    assert (tmp_path / "cleaned").exists() == (number is signal.SIGINT)


def _wait_for_pid(path: Path) -> int:
    deadline = time.monotonic() + 150
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text())


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


_MARKED_ALIKE = """
    import pytest


    @pytest.mark.gpu_memory
    @pytest.mark.parametrize("number", range(7))
    def test_one_of_many(number):
        pass
"""


def test_process_that_never_starts_is_given_up(tmp_path: Path) -> None:
    """Where the process on the null GPU ends at each start, it is started five times and not for every test."""
    dying = """
        import os

        if "LD_PRELOAD" in os.environ:
            os._exit(7)
    """
    run = run_pytest(write_files(tmp_path, pytest_ini=_SETTINGS, conftest=dying, test_many=_MARKED_ALIKE))
    texts = [run.text(name) for name in run.cases]
    assert ["ended with exit code 7" in text for text in texts] == [True] * 5 + [False] * 2
    assert all("ended 5 times, and is not started again" in text for text in texts[5:])


def test_failure_of_a_plugin_is_told(tmp_path: Path) -> None:
    """What makes pytest itself fail in the process on the null GPU is in the report of the test that it happened to."""
    raising = """
        import os


        def pytest_runtest_logstart(nodeid):
            if "LD_PRELOAD" in os.environ:
                raise ValueError("the plugin's own bug")
    """
    run = run_pytest(write_files(tmp_path, pytest_ini=_SETTINGS, conftest=raising, test_many=_MARKED_ALIKE), "-x")
    assert list(run.cases) == ["test_one_of_many[0]"]
    assert "pytest or a plugin failed in the process on the null GPU" in run.output
    assert "ValueError: the plugin's own bug" in run.output
