"""Measures each test's peak and fails the test that is over its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _pytest.outcomes import Failed

from oomdoctor.pytest_plugin.meter import Meter
from oomdoctor.pytest_plugin.plan import PLAN
from oomdoctor.pytest_plugin.protocol import DEVICE, LIMIT, PEAK, GpuMemoryWarning
from oomdoctor.pytest_plugin.report import explanation, held_lines, null_gpu_notes, over_limit, ran_out

if TYPE_CHECKING:
    from collections.abc import Generator

    from oomdoctor.pytest_plugin.meter import Reading
    from oomdoctor.pytest_plugin.plan import Plan


class Measurement:
    """Hooks around every test that has a plan for this process.

    What counts is the most that the process had allocated at one time from the test's setup to the end of its call,
    what wider fixtures hold included: all of it has to be on the card together.
    """

    def __init__(self) -> None:
        self._meter: Meter | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure from before the setup."""
        plan = _plan(item)
        if plan is None:
            return (yield)
        self._meter = Meter(eager=plan.marked)
        try:
            return (yield)
        finally:
            self._meter.close()
            self._meter = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Refuse to run a marked test that would measure nothing."""
        plan = _plan(item)
        if plan is not None and plan.marked and self._meter is not None and not self._meter.sees_gpu:
            pytest.fail("there is no torch here that sees a GPU, so that nothing can be measured", pytrace=False)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Judge the test when its call has ended; its own error comes before ours."""
        try:
            result = yield
        finally:
            plan, reading = _plan(item), self._meter.read() if self._meter else None
            if plan is not None and reading is not None:
                item.user_properties += _properties(plan, reading)
        if plan is not None:
            self._judge(item, plan, reading)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to a failure what the test's memory has to do with it."""
        report = yield
        plan = _plan(item)
        if plan is not None and report.failed and call.when in {"setup", "call"} and not _is_ours(call):
            text = self._around(item, plan)
            if text:
                report.sections.append(("GPU memory", text))
        return report

    def _judge(self, item: pytest.Item, plan: Plan, reading: Reading | None) -> None:
        if reading is None or not reading.peak_bytes:
            if plan.marked:
                item.warn(GpuMemoryWarning("the test is marked `gpu_memory`, and allocated no GPU memory"))
            return
        if plan.limit_bytes is not None and reading.peak_bytes > plan.limit_bytes:
            text = f"{over_limit(reading, plan.limit_bytes)}\n{self._explanation(item, reading)}"
            raise GpuMemoryError(text, pytrace=False)

    def _around(self, item: pytest.Item, plan: Plan) -> str:
        reading = self._meter.read() if self._meter else None
        if reading is None:
            return ""
        parts = []
        if reading.ooms:
            parts = [ran_out(reading, plan.limit_bytes), self._explanation(item, reading)]
        elif plan.limit_bytes is not None and reading.peak_bytes > plan.limit_bytes:
            parts = [over_limit(reading, plan.limit_bytes), self._explanation(item, reading)]
        return "\n".join(part for part in (*parts, null_gpu_notes(reading)) if part)

    def _explanation(self, item: pytest.Item, reading: Reading) -> str:
        snapshot = self._meter.snapshot() if self._meter else None
        lines = None if snapshot is None else held_lines(snapshot, reading.device)
        return explanation(reading, lines, item.config.rootpath)


class GpuMemoryError(Failed):
    """A failure whose text says all that there is to say of the test's memory."""

    __module__ = "builtins"  # so that pytest prints the bare name


def _is_ours(call: pytest.CallInfo[None]) -> bool:
    return call.excinfo is not None and isinstance(call.excinfo.value, GpuMemoryError)


def _plan(item: pytest.Item) -> Plan | None:
    """Return the test's plan, where it is carried out in this process."""
    plan = item.stash.get(PLAN, None)
    return plan if plan is not None and plan.card is None and plan.problem is None else None


def _properties(plan: Plan, reading: Reading) -> list[tuple[str, object]]:
    limit = plan.limit_bytes if plan.limit_bytes is not None else reading.capacity_bytes
    return [(PEAK, reading.peak_bytes), (LIMIT, limit), (DEVICE, reading.name)]
