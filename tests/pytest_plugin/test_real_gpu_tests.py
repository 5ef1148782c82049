"""Tests on a GPU of the machine, in pytest's own process; a null GPU plays the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pytest_runs import PytestRun, run_once, run_pytest, write_files

from oomdoctor.engines.choice import choose_engine

MIB = 1 << 20

_CONFTEST = """
    def pytest_unconfigure(config):
        import torch

        torch.empty(1, device="cuda")
        print("events afterwards:", len(torch.cuda.memory._snapshot()["device_traces"][0]))
        print("reset afterwards:", type(torch._C._cuda_resetPeakMemoryStats).__name__)
"""

_TESTS = """
    import os

    import pytest
    import torch

    OWN = os.getpid()
    kept = []


    def take(mib):
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


    def test_unmarked_before_cuda_is_used():
        take(300)


    def test_unmarked_fits():
        take(50)


    def test_unmarked_is_over():
        take(120)


    def test_unmarked_without_gpu():
        pass


    @pytest.mark.gpu_memory
    def test_marked_takes_the_default():
        take(110)


    @pytest.mark.gpu_memory("200 MiB")
    def test_marked_has_its_own():
        assert os.getpid() == OWN
        take(150)


    @pytest.mark.gpu_memory("40 MiB")
    def test_trains():
        layer = torch.nn.Linear(2048, 2048, bias=False, device="cuda")
        loss = layer(torch.zeros(1, 2048, device="cuda")).sum()
        loss.backward()
        take(20)


    def test_leaks():
        kept.append(take(30))


    @pytest.mark.gpu_memory("40 MiB")
    def test_after_a_leak():
        take(20)


    @pytest.mark.gpu_memory("1 GiB", gpu="rtx-3090")
    def test_on_another_card():
        assert "3090" in torch.cuda.get_device_name()
        take(500)
"""


def _machine(card: str) -> dict[str, str]:
    engine = choose_engine(engine="null", gpu=card, device=None, memory_bytes=None, base=os.environ)
    wanted = ("LD_PRELOAD", "LD_LIBRARY_PATH", "TORCH_", "OOMDOCTOR_NULL", "TRITON")
    return {name: value for name, value in engine.environment.items() if name.startswith(wanted)}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """A suite on a machine with a GPU, with a limit for all tests."""
    files = {"conftest": _CONFTEST, "test_gpu": _TESTS}
    limit = ("--gpu-memory-limit", "100 MiB", "--gpu-memory-report", "-s")
    return run_once(tmp_path_factory, "gpu", files, *limit, environment=_machine("a100-sxm4-40gb"))


pytestmark = pytest.mark.null_gpu


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_unmarked_before_cuda_is_used", "failure"),
        ("test_unmarked_fits", "passed"),
        ("test_unmarked_is_over", "failure"),
        ("test_unmarked_without_gpu", "passed"),
        ("test_marked_takes_the_default", "failure"),
        ("test_marked_has_its_own", "passed"),
        ("test_trains", "failure"),
        ("test_after_a_leak", "failure"),
        ("test_on_another_card", "passed"),
    ],
)
def test_limits_hold_on_the_machines_gpu(suite: PytestRun, name: str, outcome: str) -> None:
    """On a machine with a GPU tests run where they are, a limit for all holds for unmarked ones, and `gpu=` plays."""
    assert suite.outcome(name) == outcome, suite.output


def test_lines_are_named_on_the_machines_gpu(suite: PytestRun) -> None:
    """A failure has the lines, where CUDA was in use when the test began; else it says why not."""
    assert "120.00 MiB     1 block  test_gpu.py:12 in take" in suite.text("test_unmarked_is_over")
    assert "110.00 MiB     1 block  test_gpu.py:12 in take" in suite.text("test_marked_takes_the_default")
    text = suite.text("test_unmarked_before_cuda_is_used")
    assert "the peak of 300.00 MiB" in text
    assert "was not recorded: CUDA was not in use when the test began; mark the test" in text


def test_gradients_are_of_the_line_that_called_backward(suite: PytestRun) -> None:
    """Weights are of the line that made the layer, gradients of the line that called backward."""
    text = suite.text("test_trains")
    assert "16.00 MiB     1 block  test_gpu.py:44 in test_trains    layer = torch.nn.Linear(" in text
    assert "16.00 MiB     1 block  test_gpu.py:46 in test_trains    loss.backward()" in text


def test_nothing_is_left_on_the_machines_gpu(suite: PytestRun) -> None:
    """When the tests have run, nothing is recorded any more and PyTorch's own functions are back in their places."""
    assert "events afterwards: 0" in suite.output
    assert "reset afterwards: builtin_function_or_method" in suite.output


def test_what_was_there_before_counts_and_is_told(suite: PytestRun) -> None:
    """What an earlier test left behind counts, since it is on the card too, and the failure says how much it is."""
    text = suite.text("test_after_a_leak")
    assert "the peak of 50.00 MiB is 10.00 MiB (25.0 %) over the limit of 40.00 MiB" in text
    assert "30.00 MiB of it was allocated before the test's setup began" in text


def test_machine_whose_gpu_torch_cannot_use(tmp_path: Path) -> None:
    """A marked test is an error where the machine has a GPU that this torch does not see."""
    write_files(
        tmp_path,
        conftest="""
            import torch

            torch.cuda.is_available = lambda: False
        """,
        test_it="""
            import pytest


            @pytest.mark.gpu_memory("1 GiB")
            def test_it():
                pass
        """,
    )
    run = run_pytest(tmp_path, environment=_machine("a100-sxm4-40gb"))
    assert run.outcome("test_it") == "error"
    assert "there is no torch here that sees a GPU, so that nothing can be measured" in run.output
