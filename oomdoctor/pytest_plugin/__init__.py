"""The pytest plugin: a test that is marked `gpu_memory` fails where its code takes more GPU memory than it may.

This module is imported by every pytest run in an environment that has oomdoctor. So it imports nothing but pytest until
a test is marked, or a limit is set for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


_OPTIONS: Final[Mapping[str, str]] = {
    "gpu_memory_limit": "most GPU memory that a test may allocate at one time, where its marker does not say: `20GiB`",
    "gpu_memory_gpu": "card to run marked tests on that name none, on a null GPU: `rtx-4090`",
}
_RAN: Final = (0, 1, 2)  # all passed, some failed, interrupted
_REPORT: Final = "list the peak of GPU memory of every test that was measured"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each with a twin in the configuration file."""
    group = parser.getgroup("oomdoctor", "GPU memory (oomdoctor)")
    for name, text in _OPTIONS.items():
        metavar = name.rpartition("_")[2].upper().replace("LIMIT", "SIZE").replace("GPU", "NAME")
        group.addoption(f"--{name.replace('_', '-')}", metavar=metavar, default=None, help=text)
        parser.addini(name, text, default="")
    group.addoption("--gpu-memory-report", action="store_true", default=None, help=_REPORT)
    parser.addini("gpu_memory_report", _REPORT, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and refuse what the options cannot mean."""
    config.addinivalue_line(
        "markers",
        "gpu_memory(limit, *, gpu, world_size, rank): fail the test if it allocates more GPU memory than "
        '`limit`, a size such as "20 GiB" or bytes; with `gpu`, such as "rtx-4090", it runs on that card, played by '
        "a null GPU; with `world_size` and `rank` (0) as that rank of a world, whose other ranks do not run.",
    )
    if any(config.getoption(name) or config.getini(name) for name in _OPTIONS):
        from oomdoctor.pytest_plugin.remote_runner import check_options  # noqa: PLC0415 - see above

        check_options(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take part in the session where a test is marked or a limit is set for all."""
    config = session.config
    limited = config.getoption("gpu_memory_limit") or config.getini("gpu_memory_limit")
    if limited or any(item.get_closest_marker("gpu_memory") for item in session.items):
        from oomdoctor.pytest_plugin.remote_runner import join  # noqa: PLC0415 - see above

        join(session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """List the peaks where that was asked for and tests ran."""
    if exitstatus in _RAN and (config.getoption("gpu_memory_report") or config.getini("gpu_memory_report")):
        from oomdoctor.pytest_plugin.report import summarise  # noqa: PLC0415 - see above

        summarise(terminalreporter)
