"""Marked tests on a machine without a GPU: what a user's suite looks like when it has run."""

from __future__ import annotations

import pytest
from pytest_runs import PytestRun, run_once

pytestmark = pytest.mark.null_gpu

MIB = 1 << 20

_CONFTEST = """
    import os

    import pytest


    @pytest.fixture(scope="session")
    def process():
        yield os.getpid()


    @pytest.fixture
    def setting_up_fails():
        raise ValueError("not set up")


    @pytest.fixture
    def tearing_down_fails():
        yield
        raise ValueError("not torn down")


    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.seen_by_conftest = object()  # what no format can hold
        return report
"""

_MARKED = """
    import os
    import unittest
    import warnings

    import pytest
    from hypothesis import given, settings
    from hypothesis import strategies as st

    pytestmark = pytest.mark.gpu_memory("200 MiB", gpu="rtx-4090")


    def take(mib):
        import torch

        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


    def test_fits(process, tmp_path, record_property):
        record_property("mine", "kept")
        assert process == os.getpid()
        take(150)


    def test_over():
        print("printed by the test")
        weights = take(100)
        others = [take(50) for _ in range(4)]


    @pytest.mark.parametrize("mib", [100, 250])
    def test_sizes(mib):
        take(mib)


    @pytest.mark.gpu_memory("20 MiB")
    def test_nearest_limit_counts():
        take(30)


    @pytest.mark.gpu_memory(limit=30 << 20, gpu="rtx-3090")
    def test_other_card():
        import torch

        assert "3090" in torch.cuda.get_device_name()
        take(30)


    @pytest.mark.xfail(strict=True, reason="known to be too large")
    def test_expected_to_be_over():
        take(300)


    @pytest.mark.skipif("not __import__('torch').cuda.is_available()")
    def test_skipped_without_gpu():
        take(1)


    @pytest.mark.skip(reason="not today")
    def test_skipped():
        take(1)


    def test_setup(setting_up_fails):
        take(1)


    def test_teardown(tearing_down_fails):
        take(1)


    class TestCase(unittest.TestCase):
        def test_method(self):
            take(201)


    @settings(max_examples=4, deadline=None, database=None)
    @given(st.integers(min_value=1, max_value=9))
    def test_examples(mib):
        take(mib)


    def test_resets_the_peak():
        import torch

        take(300)
        torch.cuda.reset_peak_memory_stats()


    def test_out_of_memory():
        weights = take(100)
        take(30 << 10)


    def test_after_a_failure():
        take(120)


    @pytest.mark.gpu_memory("1 MiB")
    def test_convolves():
        import torch

        torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda")(torch.empty(64, 64, 56, 56, device="cuda"))


    def test_reads_values():
        import torch

        assert torch.ones(1, device="cuda").item() == 1


    def test_takes_nothing():
        pass


    def test_warns():
        warnings.warn("careful with that", DeprecationWarning)
        take(1)


    def test_debugs():
        breakpoint()


    def test_dies():
        os.kill(os.getpid(), 9)


    def test_after_a_death(process):
        assert process == os.getpid()
        take(1)


    if "LD_PRELOAD" not in os.environ:

        def test_not_on_the_null_gpu():
            take(1)
"""

_UNMARKED = """
    import os


    def test_of_another_kind(process):
        assert process == os.getpid()
        assert "LD_PRELOAD" not in os.environ
        import torch

        assert not torch.cuda.is_available()
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """A suite with tests of all sorts, most of them marked."""
    files = {"conftest": _CONFTEST, "test_marked": _MARKED, "test_unmarked": _UNMARKED}
    return run_once(tmp_path_factory, "suite", files, "--gpu-memory-report", "-rA")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_fits", "passed"),
        ("test_over", "failure"),
        ("test_sizes[100]", "passed"),
        ("test_sizes[250]", "failure"),
        ("test_nearest_limit_counts", "failure"),
        ("test_other_card", "passed"),
        ("test_expected_to_be_over", "skipped"),
        ("test_skipped_without_gpu", "passed"),
        ("test_skipped", "skipped"),
        ("test_setup", "error"),
        ("test_teardown", "error"),
        ("test_method", "failure"),
        ("test_examples", "passed"),
        ("test_resets_the_peak", "failure"),
        ("test_out_of_memory", "failure"),
        ("test_after_a_failure", "passed"),
        ("test_convolves", "failure"),
        ("test_reads_values", "failure"),
        ("test_warns", "passed"),
        ("test_debugs", "failure"),
        ("test_dies", "failure"),
        ("test_after_a_death", "passed"),
        ("test_of_another_kind", "passed"),
    ],
)
def test_outcomes_are_those_of_a_machine_with_the_card(suite: PytestRun, name: str, outcome: str) -> None:
    """Each test is reported once, with the outcome that it would have on the card, whatever its kind."""
    assert suite.outcome(name) == outcome, suite.output
    assert suite.code == pytest.ExitCode.TESTS_FAILED


def test_failure_says_how_much_and_where(suite: PytestRun) -> None:
    """A test above its limit says the peak, by how much it is over, the card, and which lines held the most."""
    text = suite.text("test_over")
    assert "the peak of 300.00 MiB is 100.00 MiB (50.0 %) over the limit of 200.00 MiB" in text
    assert "on NVIDIA GeForce RTX 4090 (null GPU), of which PyTorch may take 23.20 GiB" in text
    assert "300.00 MiB    5 blocks  test_marked.py:16 in take    return torch.empty(mib << 20" in text
    assert "printed by the test" in suite.output


def test_workspaces_in_the_peak_are_named(suite: PytestRun) -> None:
    """A limit holds what cuDNN takes where there is room, which is said of a test that convolves, and of no other."""
    note = "the peak may hold cuDNN's workspaces, the largest of "
    assert [name for name in suite.cases if note in suite.text(name)] == ["test_convolves"]


def test_short_summary_names_the_peak(suite: PytestRun) -> None:
    """The line of pytest's short summary has the figures, so that nobody has to scroll."""
    assert "FAILED test_marked.py::test_over - GpuMemoryError: the peak of 300.00 MiB is 100.00 MiB" in suite.output


def test_peak_is_known_after_the_test_reset_it(suite: PytestRun) -> None:
    """A test that resets PyTorch's peak statistics is held to its limit all the same."""
    assert "the peak of 300.00 MiB" in suite.text("test_resets_the_peak")


def test_out_of_memory_has_the_lines_too(suite: PytestRun) -> None:
    """A test that runs out of memory on the card shows who held memory then, beside its own error."""
    text = suite.text("test_out_of_memory")
    assert "OutOfMemoryError: CUDA out of memory" in text
    assert "the most it had allocated is 100.00 MiB; the limit is 200.00 MiB" in suite.output
    assert (
        "allocated when memory ran out, by line:\n   100.00 MiB     1 block  test_marked.py:16 in take" in suite.output
    )


def test_memory_of_a_failed_test_does_not_count(suite: PytestRun) -> None:
    """What a failed test's frames held is gone when the next test is measured."""
    assert suite.properties("test_after_a_failure")["gpu_memory_peak_bytes"] == str(120 * MIB)


def test_zeros_are_explained(suite: PytestRun) -> None:
    """A test that fails after it read values from a null GPU is told that they are zeros."""
    assert "a null GPU has memory and does no arithmetic: the test read back from it" in suite.output


def test_limit_that_holds_nothing_is_warned_of(suite: PytestRun) -> None:
    """A marked test that allocates no GPU memory passes with a warning, and so does not go unseen."""
    assert suite.outcome("test_takes_nothing") == "passed"
    assert "GpuMemoryWarning: the test is marked `gpu_memory`, and allocated no GPU memory" in suite.output


def test_warnings_come_back(suite: PytestRun) -> None:
    """A warning of a test on a null GPU is in pytest's summary of warnings, with its kind."""
    assert "DeprecationWarning: careful with that" in suite.section("warnings summary")


def test_death_is_told(suite: PytestRun) -> None:
    """A test that kills its process fails with the signal's name."""
    assert "the process on the null GPU (`rtx-4090`) ended by SIGKILL" in suite.text("test_dies")


def test_test_that_is_not_there_is_told(suite: PytestRun) -> None:
    """A marked test that does not exist in the process on the null GPU is an error and not skipped."""
    assert suite.outcome("test_not_on_the_null_gpu") == "error"
    assert "was not found when its file was collected on the null GPU" in suite.text("test_not_on_the_null_gpu")


def test_debugger_is_refused(suite: PytestRun) -> None:
    """A breakpoint in a test on a null GPU says that there is no terminal."""
    assert "has no terminal, so that no debugger can be used in it" in suite.text("test_debugs")


def test_figures_are_properties_of_the_report(suite: PytestRun) -> None:
    """Peak, limit and card are in the JUnit file, beside what the test recorded itself."""
    assert suite.properties("test_fits") == {
        "mine": "kept",
        "gpu_memory_peak_bytes": str(150 * MIB),
        "gpu_memory_limit_bytes": str(200 * MIB),
        "gpu_memory_device": "NVIDIA GeForce RTX 4090 (null GPU)",
    }


def test_report_lists_the_peaks(suite: PytestRun) -> None:
    """`--gpu-memory-report` lists each measured test with peak, limit and share, the highest peak first."""
    lines = suite.section("GPU memory").splitlines()
    assert lines[0].split() == ["peak", "limit", "share", "test"]
    assert lines[1].split()[:5] == ["300.00", "MiB", "200.00", "MiB", "150"]
    assert any("50.00 MiB" in line and "test_marked.py::test_fits" in line for line in lines)
    assert not any("test_of_another_kind" in line for line in lines)
