"""The pytest session in the child: runs the tests that it is told to, and sends their reports.

Its start says `{"path", "arguments", "argv", "paths", "basetemp", "worker"}`. It is told `{"op": "run", "item", "next",
"limit_bytes"}` for each test, then `{"op": "end"}`. It tells `report` and `warning` as they come, and one of `done`,
`missing`, `exit` and `interrupted` when a test has ended.
"""

from __future__ import annotations

import os
import pdb  # noqa: T100 - to refuse it
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.terminal import TerminalReporter, pytest_report_teststatus

from oomdoctor.agent import imports, lone_rank, null_gpu
from oomdoctor.pytest_plugin.measurement import Measurement
from oomdoctor.pytest_plugin.plan import PLAN, MarkerPlan
from oomdoctor.pytest_plugin.protocol import IN_CHILD, key_of, pack, pack_warning
from oomdoctor.trial.process import ChannelClosedError, WorkerChannel, die_with_parent

if TYPE_CHECKING:
    import warnings
    from collections.abc import Generator

    from oomdoctor.trial.process import Message


_SETTLED: Final[dict[str, Any]] = {
    "usepdb": False,
    "trace": False,
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "looponfail": False,
    "tx": [],
    "pyargs": False,
    "cacheclear": False,
}
"""Options that are for the session that people started; one that is not known here belongs to no plugin here."""


def serve(config: pytest.Config, start: Message, channel: WorkerChannel) -> None:
    """Make a session that is about to load its conftest files one that runs tests on demand.

    Args:
        config: Of the session.
        start: What the session that people started said first.
        channel: To that session.
    """
    die_with_parent()
    if hasattr(config.known_args_namespace, "cov_append"):
        # pytest-cov erases all data files that lie there, and those of xdist's workers that have ended are among them.
        config.known_args_namespace.cov_append = True
    if lone_rank.is_lone():
        imports.when_imported("torch", null_gpu.begin)
    config.pluginmanager.register(ChildSession(channel, start))
    config.pluginmanager.register(Measurement())


class ChildSession:
    """Runs tests on demand.

    Args:
        channel: To the session that people started.
        start: What it said first.
    """

    def __init__(self, channel: WorkerChannel, start: Message) -> None:
        self._channel = channel
        self._start = start
        self._last: pytest.Item | None = None
        self._problems: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, object, object]:
        """Make it a session that prints nothing and starts no others."""
        config.stash[IN_CHILD] = True
        config.args[:] = self._start["paths"]
        config.workerinput = self._start["worker"]  # type: ignore[attr-defined]
        config.workeroutput = {}  # type: ignore[attr-defined]
        config.option.basetemp = self._start["basetemp"]
        for name, value in _SETTLED.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            # What prints prints nowhere; some plugins cannot do without it.
            config.pluginmanager.set_blocked("terminal")
            config.pluginmanager.set_blocked("terminalprogress")
            config.pluginmanager.register(TerminalReporter(config, nowhere), "terminalreporter")
            try:
                return (yield)
            except ChannelClosedError:  # the session that people started is gone
                return pytest.ExitCode.INTERRUPTED

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Refuse debuggers: there is no terminal to type into."""
        pdb.set_trace = _refuse_debugger

    @pytest.hookimpl(trylast=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Answer plugins that ask, as the one that was silenced would."""
        return pytest_report_teststatus(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file could not be collected here."""
        if report.failed or report.skipped:
            self._problems.append(report.longreprtext)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell of a failure of pytest or of a plugin, which nothing else would show."""
        self._channel.send({"event": "internal_error", "text": str(excrepr)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what is asked for until the end is."""
        items = {key_of(item): item for item in session.items}
        while (request := self._channel.receive())["op"] == "run":
            self._answer(request, items)
        self._tear_down_to(None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand on a report."""
        config = None if self._last is None else self._last.config
        if config is not None:
            data = config.hook.pytest_report_to_serializable(config=config, report=report)
            self._channel.send({"event": "report", "data": pack(data)})

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Hand on a warning of a test; those of collection have been seen by the session that people started."""
        if when == "runtest":
            told = {"when": when, "nodeid": nodeid, "location": pack(location)}
            self._channel.send({"event": "warning", "warning": pack_warning(warning_message), **told})

    def _answer(self, request: Message, items: dict[str, pytest.Item]) -> None:
        item = items.get(request["item"])
        if item is None:
            self._channel.send({"event": "missing", "why": "\n".join(self._problems)})
            return
        try:
            self._tear_down_to(item)
            self._last = item
            item.stash[PLAN] = MarkerPlan(request["limit_bytes"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(request["next"]))
        except pytest.exit.Exception as error:
            self._channel.send({"event": "exit", "reason": error.msg or "", "returncode": error.returncode})
        except KeyboardInterrupt:
            self._channel.send({"event": "interrupted"})
            raise
        else:
            self._channel.send({"event": "done", "should_stop": item.session.shouldstop})

    def _tear_down_to(self, item: pytest.Item | None) -> None:
        """Tear down what an earlier test left for another than the one that comes now."""
        last = self._last
        if last is None:
            return
        call = pytest.CallInfo.from_call(
            lambda: last.session._setupstate.teardown_exact(item),  # noqa: SLF001 - the hook would end the test once more
            "teardown",
            (pytest.exit.Exception, KeyboardInterrupt),
        )
        if call.excinfo is not None:
            self.pytest_runtest_logreport(pytest.TestReport.from_item_and_call(last, call))


def _refuse_debugger(*_: object, **__: object) -> None:
    __tracebackhide__ = True
    pytest.fail("a test that runs on a null GPU has no terminal, so that no debugger can be used in it")
