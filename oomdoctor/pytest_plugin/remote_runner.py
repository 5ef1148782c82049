"""Runs marked tests in a process on their card, and reports of them as if they had run here."""

from __future__ import annotations

import socket
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

import pytest

from oomdoctor.errors import NoAnswerError, OomdoctorError, UsageError
from oomdoctor.pytest_plugin.child_process import ChildProcess
from oomdoctor.pytest_plugin.plan import PLAN, MarkerPlan, MarkerPlanner, explained, read_defaults
from oomdoctor.pytest_plugin.protocol import IN_CHILD, GpuMemoryWarning, key_of, unpack, unpack_warning

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from oomdoctor.trial.process import Message


def check_options(config: pytest.Config) -> None:
    """Refuse options that mean nothing, before anything is collected.

    Raises:
        pytest.UsageError: The limit is no size, or the card is unknown.
    """
    try:
        read_defaults(config)
    except UsageError as error:
        raise pytest.UsageError(explained(error)) from None


def join(session: pytest.Session) -> None:
    """Plan every test, and have those that are ours run where they belong."""
    if IN_CHILD in session.config.stash:  # the session that started this one has made the plans
        return
    planner = MarkerPlanner(session.config, read_defaults(session.config))
    for item in session.items:
        try:
            plan = planner.plan(item)
        except UsageError as error:  # of this test alone: others run, and every wrong marker is named in one run
            plan = MarkerPlan(None, problem=explained(error))
        if plan is not None:
            item.stash[PLAN] = plan
    plans = [item.stash[PLAN] for item in session.items if PLAN in item.stash]
    manager = session.config.pluginmanager
    if any(plan.card is None and plan.problem is None for plan in plans):
        from oomdoctor.pytest_plugin.measurement import Measurement  # noqa: PLC0415 - only sessions on a GPU need it

        manager.register(Measurement(), "oomdoctor-measuring")
    if any(plan.card is not None or plan.problem is not None for plan in plans):
        manager.register(RemoteRunner(session), "oomdoctor-conductor")


_MOST_CRASHES: Final = 5
"""Crashes after which no process is started any more for a card; a test that crashes costs a start each time."""


class RemoteRunner:
    """Runs the tests of each card, and of each rank on it, in one process of their own.

    It is started when the first of them is due.

    Args:
        session: With all its tests collected and planned.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._config = session.config
        self._is_worker = hasattr(session.config, "workerinput")
        self._paths: dict[str, dict[str, None]] = {}
        self._next_on_card: dict[str, str] = {}
        self._sessions: dict[str, ChildProcess] = {}
        self._broken: dict[str, OomdoctorError] = {}
        self._crashes: dict[str, int] = {}
        self._last: dict[str, pytest.Item] = {}
        session.config.add_cleanup(self._close)
        before: dict[str, str] = {}
        for item in session.items:
            card = _card(item)
            if card is not None:
                self._paths.setdefault(card, {})[str(item.path)] = None
                if card in before:
                    self._next_on_card[before[card]] = key_of(item)
                before[card] = key_of(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test where it belongs."""
        plan = _remote_plan(item)
        if plan is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._run(item, nextitem, plan)
        try:  # tear down what earlier tests set up in this process and the next does not need, as this test's end would
            item.session._setupstate.teardown_exact(nextitem)  # noqa: SLF001 - the hook is for a test that was set up
        except Exception as error:  # noqa: BLE001 - fixtures raise anything
            _report_problem(item, "teardown", f"a fixture of an earlier test failed in its teardown: {error!r}")
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """End the processes when all tests have run, before plugins such as pytest-cov gather what they wrote."""
        try:
            return (yield)
        finally:  # `-x` ends it with an exception
            for card, session in self._sessions.items():
                self._finish(session, self._last[card])
            self._close()

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Leave the time to pytest-timeout in the process that runs the test."""
        return True if _remote_plan(item) is not None else None

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None, plan: MarkerPlan) -> None:
        if plan.problem is not None:
            _report_problem(item, "setup", plan.problem)
            return
        card = str(plan.process)
        try:
            session = self._session(card, plan)
        except OomdoctorError as error:
            _report_problem(item, "setup", explained(error))
            return
        self._last[card] = item
        # The test that follows in the same process: fixtures that both use are kept.
        following = self._next_on_card.get(key_of(item))
        if self._is_worker:  # xdist tells which test is next, and not which are after it
            following = key_of(nextitem) if nextitem is not None and _card(nextitem) == card else None
        request = {"item": key_of(item), "next": following, "limit_bytes": plan.limit_bytes}
        try:
            for message in session.run(request):
                _HANDLERS[message["event"]](message, item)
        except OomdoctorError as error:
            self._forget(card)
            _report_problem(item, "call", explained(error))
        except BaseException:
            session.interrupt()
            raise

    def _session(self, card: str, plan: MarkerPlan) -> ChildProcess:
        if card in self._broken:
            raise self._broken[card]
        if card not in self._sessions:
            try:
                factory = getattr(self._config, "_tmp_path_factory", None)
                start = {
                    "arguments": [str(argument) for argument in self._config.invocation_params.args],
                    "argv": sys.argv,
                    "paths": list(self._paths[card]),
                    # A folder of its own, as xdist's workers have: a session empties the one that it is given.
                    "basetemp": None if factory is None else str(factory.getbasetemp() / f"null-gpu-{card}"),
                    "worker": _worker_input(self._config),
                }
                self._sessions[card] = ChildProcess(self._config, str(plan.card), start, plan.rank)
            except OomdoctorError as error:
                self._broken[card] = error
                raise
        return self._sessions[card]

    def _finish(self, session: ChildProcess, item: pytest.Item) -> None:
        """Report the results of the last tear-downs."""
        try:
            for message in session.finish():
                if message["event"] == "report":
                    _on_report(message, item)
        except NoAnswerError as error:
            warnings.warn(GpuMemoryWarning(explained(error)), stacklevel=1)

    def _forget(self, card: str) -> None:
        """Let go of a process that ended; one that ends again and again is not started any more."""
        lost = self._sessions.pop(card, None)
        if lost is None:
            return
        lost.close()
        self._crashes[card] = self._crashes.get(card, 0) + 1
        if self._crashes[card] >= _MOST_CRASHES:
            self._broken[card] = NoAnswerError(
                f"the process on the null GPU (`{card}`) ended {_MOST_CRASHES} times, and is not started again"
            )

    def _close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


def _on_report(message: Message, item: pytest.Item) -> None:
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=unpack(message["data"]))
    report.nodeid = item.nodeid
    item.ihook.pytest_runtest_logreport(report=report)


def _on_warning(message: Message, item: pytest.Item) -> None:
    recorded = {
        "warning_message": unpack_warning(message["warning"]),
        "when": message["when"],
        "nodeid": item.nodeid if message["when"] == "runtest" else message["nodeid"],
        "location": unpack(message["location"]),
    }
    item.ihook.pytest_warning_recorded.call_historic(kwargs=recorded)


def _on_missing(message: Message, item: pytest.Item) -> None:
    why = message["why"] or (
        "names or parameters of tests may not depend on whether there is a GPU: they are collected without one first"
    )
    _report_problem(item, "setup", f"the test was not found when its file was collected on the null GPU\n{why}")


def _on_done(message: Message, item: pytest.Item) -> None:
    """Stop the session where the test asked for it."""
    item.session.shouldstop = message["should_stop"] or item.session.shouldstop


def _on_interrupted(_: Message, __: pytest.Item) -> None:
    raise KeyboardInterrupt


_HANDLERS: Mapping[str, Callable[[Message, pytest.Item], None]] = {
    "report": _on_report,
    "warning": _on_warning,
    "missing": _on_missing,
    "done": _on_done,
    "exit": lambda message, _: pytest.exit(message["reason"], message["returncode"]),
    "interrupted": _on_interrupted,
}


def _remote_plan(item: pytest.Item) -> MarkerPlan | None:
    """Return the test's plan, where it is not carried out in this process."""
    plan = item.stash.get(PLAN, None)
    return plan if plan is not None and (plan.card is not None or plan.problem is not None) else None


def _card(item: pytest.Item) -> str | None:
    plan = item.stash.get(PLAN, None)
    return None if plan is None or plan.problem is not None else plan.process


def _report_problem(item: pytest.Item, when: Any, text: str) -> None:  # noqa: ANN401 - one of pytest's own literals
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
    )
    item.ihook.pytest_runtest_logreport(report=report)


def _worker_input(config: pytest.Config) -> dict[str, Any]:
    """Return the input of an xdist worker: plugins that know xdist then leave reports and caches alone."""
    own = {
        "workerid": "master",
        "workercount": 1,
        "testrunuid": "oomdoctor",
        "mainargv": sys.argv,
        "cov_master_host": socket.gethostname(),
        "cov_master_topdir": str(config.invocation_params.dir),
        "cov_master_rsync_roots": [],
    }
    given = dict(getattr(config, "workerinput", None) or own)
    return {name: value for name, value in given.items() if isinstance(value, str | int | float | list | None)}
