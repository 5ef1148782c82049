"""What is refused, and where the limit and the card come from; none of it needs a null GPU to start."""

from __future__ import annotations

import pytest

_NO_COMPILER = "the null GPU needs a C compiler, and `no-such-compiler` from `CC` cannot be found"
"""What a test fails with whose card was found, where the null GPU cannot be built."""


@pytest.fixture(autouse=True)
def _no_null_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the null GPU fail to build, so that a card that was settled on shows without a process on it."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def _run(pytester: pytest.Pytester, marker: str, *arguments: str) -> pytest.RunResult:
    text = f"import pytest\n\n@pytest.mark.gpu_memory{marker}\ndef test_it():\n    raise SystemError('it ran')\n"
    pytester.makepyfile(test_it=text)
    return _run_pytest(pytester, "-p", "no:cacheprovider", *arguments)


def _run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """In this process, which takes less time, where nothing speaks against it."""
    alone = not {"-n", "-s"} & {*arguments}
    run = pytester.runpytest_inprocess if alone else pytester.runpytest_subprocess
    return run("-p", "no:hypothesispytest", *arguments)  # what takes most of the time to import


_WRONG = {
    '("lots")': "`lots` is not a size",
    '("20")': "`20` has no unit",
    "(0)": "the limit is a size or a positive number of bytes, and not 0",
    "(-5)": "the limit is a size or a positive number of bytes, and not -5",
    "(2.5)": "the limit is a size or a positive number of bytes, and not 2.5",
    "(True)": "the limit is a size or a positive number of bytes, and not True",
    "(1, 2)": "it takes one limit, and not 2",
    '(1, limit="1 GiB")': "its limit is given twice",
    "(max=1)": "it takes `limit`, `gpu`, `world_size` and `rank`, and not `max`",
    '(gpu="rtx-9999")': "no GPU called `rtx-9999` is known",
    "(rank=1)": "`rank` is one of a world, and `world_size` is not given",
    "(world_size=0)": "`world_size` is a positive number of ranks, and not 0",
    "(world_size=4, rank=4)": "`rank` is a number below the world size of 4, and not 4",
    "(gpu=4090)": "`gpu` is the name of a card, and not 4090",
}


def test_wrong_markers_are_errors_of_their_tests(pytester: pytest.Pytester) -> None:
    """Each marker that cannot be understood is an error of its test that says what is wrong; all others run."""
    marked = (
        f"@pytest.mark.gpu_memory{marker}\ndef test_{number}():\n    raise SystemError('it ran')\n"
        for number, marker in enumerate(_WRONG)
    )
    pytester.makepyfile(test_it="\n".join(["import pytest", *marked, "def test_unmarked(): pass"]))
    result = _run_pytest(pytester, "-p", "no:cacheprovider")
    result.assert_outcomes(errors=len(_WRONG), passed=1)
    for number, message in enumerate(_WRONG.values()):
        result.stdout.fnmatch_lines([f"`gpu_memory` of `test_it.py::test_{number}`: {message}*", "hint: *"])


def test_wrong_marker_is_an_error_of_its_test_under_xdist(pytester: pytest.Pytester) -> None:
    """Under xdist it is one too."""
    result = _run(pytester, '("lots")', "-n", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["`gpu_memory` of `test_it.py::test_it`: `lots` is not a size"])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--gpu-memory-limit", "12", "`--gpu-memory-limit`: `12` has no unit"),
        ("--gpu-memory-gpu", "rtx-9999", "`--gpu-memory-gpu`: no GPU called `rtx-9999` is known"),
    ],
)
def test_wrong_option_is_a_usage_error(pytester: pytest.Pytester, option: str, value: str, message: str) -> None:
    """An option that cannot be understood ends the session at once, even where nothing is marked, and with xdist."""
    pytester.makepyfile("def test_it(): pass")
    result = _run_pytest(pytester, option, value, "-n", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}", "hint: *"])


def test_no_card_is_an_error(pytester: pytest.Pytester) -> None:
    """Without a GPU and without a named card, a marked test is an error: it neither passes nor is skipped."""
    result = _run(pytester, '("1 GiB")')
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["this machine has no GPU to measure on, and no card is named", "hint: *--gpu-memory-gpu*"]
    )


def test_null_gpu_that_cannot_be_had_is_an_error(pytester: pytest.Pytester) -> None:
    """A test whose null GPU cannot be built is an error that says why."""
    result = _run(pytester, '("1 GiB", gpu="rtx-4090")')
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([_NO_COMPILER, "hint: install gcc*"])


def test_card_from_the_command_line(pytester: pytest.Pytester) -> None:
    """`--gpu-memory-gpu` names the card for tests that name none."""
    _run(pytester, "", "--gpu-memory-gpu", "rtx-4090").stdout.fnmatch_lines([_NO_COMPILER])


def test_card_from_pytests_configuration(pytester: pytest.Pytester) -> None:
    """`gpu_memory_gpu` in pytest's configuration does so too."""
    pytester.makeini("[pytest]\ngpu_memory_gpu = rtx-4090")
    _run(pytester, "").stdout.fnmatch_lines([_NO_COMPILER])


def test_card_from_the_project(pytester: pytest.Pytester) -> None:
    """Failing both, the card is the one that `oomdoctor check` runs on."""
    pytester.makepyprojecttoml('[tool.oomdoctor]\ngpu = "rtx-4090"')
    _run(pytester, "").stdout.fnmatch_lines([_NO_COMPILER])


def test_project_that_cannot_be_read_is_an_error(pytester: pytest.Pytester) -> None:
    """A configuration of the project that is wrong is an error of the test that looks for its card there."""
    pytester.makepyprojecttoml('[tool.oomdoctor]\ngpus = 5\ngpu = "rtx-9999"')
    result = _run(pytester, "")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["`tool.oomdoctor.gpus` in `pyproject.toml` is `5`, not a list of strings", "hint: *"])


def test_wrong_markers_of_tests_that_do_not_run_do_not_matter(pytester: pytest.Pytester) -> None:
    """A marker is read only where its test was selected."""
    pytester.makepyfile("import pytest\n\n@pytest.mark.gpu_memory('lots')\ndef test_a(): pass\ndef test_b(): pass")
    _run_pytest(pytester, "-k", "test_b").assert_outcomes(passed=1, deselected=1)


def test_marker_is_declared(pytester: pytest.Pytester) -> None:
    """`pytest --markers` explains the marker, so that `--strict-markers` takes it."""
    result = _run_pytest(pytester, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gpu_memory(limit, [*], gpu, world_size, rank): fail the test if *"])


def test_report_without_a_measured_test(pytester: pytest.Pytester) -> None:
    """`--gpu-memory-report` says so where nothing was measured."""
    pytester.makepyfile("def test_it(): pass")
    result = _run_pytest(pytester, "--gpu-memory-report")
    result.stdout.fnmatch_lines(["no test was measured: mark one with `@pytest.mark.gpu_memory`"])


def test_unused_plugin_costs_nothing(pytester: pytest.Pytester) -> None:
    """A session in which no test is marked loads nothing of oomdoctor but the plugin's first module, and no torch."""
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure(config):
            loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "oomdoctor"))
            print("loaded:", *loaded)
    """)
    pytester.makepyfile("def test_it(): pass")
    result = _run_pytest(pytester, "-s")
    result.stdout.fnmatch_lines(["*loaded: oomdoctor oomdoctor.pytest_plugin"])


def test_marked_tests_do_not_load_torch_here(pytester: pytest.Pytester) -> None:
    """Neither do marked tests load torch into the process that people start; only the tests' own code does."""
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure(config):
            print("torch:", "torch" in sys.modules)
    """)
    _run(pytester, '(gpu="rtx-4090")', "-s").stdout.fnmatch_lines(["*torch: False"])


def test_fixtures_of_other_tests_are_torn_down_in_time(pytester: pytest.Pytester) -> None:
    """A marked test between two others, of which neither's folder is the other's, leaves those as they would be."""
    for name, text in {
        "one/test_a.py": "def test_a(): pass",
        "one/test_b.py": "import pytest\n\n@pytest.mark.gpu_memory(gpu='rtx-4090')\ndef test_b(): pass",
        "two/test_c.py": "def test_c(): pass",
    }.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _run_pytest(pytester).assert_outcomes(passed=2, errors=1)
