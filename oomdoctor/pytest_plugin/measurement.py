"""Measures each test's peak with a meter of its own, and fails the test that is over its limit."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _pytest.outcomes import Failed

from oomdoctor.agent.memory_stats import PeakKeeper
from oomdoctor.engines.null_gpu import library as null_gpu
from oomdoctor.pytest_plugin.plan import PLAN
from oomdoctor.pytest_plugin.protocol import DEVICE, LIMIT, PEAK, GpuMemoryWarning
from oomdoctor.pytest_plugin.report import explanation, held_lines, null_gpu_notes, over_limit, ran_out

if TYPE_CHECKING:
    from collections.abc import Generator

    from oomdoctor.pytest_plugin.plan import MarkerPlan

_MOST_EVENTS = 200_000


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
                limit = plan.limit_bytes if plan.limit_bytes is not None else reading.capacity_bytes
                item.user_properties += [(PEAK, reading.peak_bytes), (LIMIT, limit), (DEVICE, reading.name)]
        if plan is None:
            return result
        if (reading is None or not reading.peak_bytes) and plan.marked:
            item.warn(GpuMemoryWarning("the test is marked `gpu_memory`, and allocated no GPU memory"))
        if reading is not None and plan.limit_bytes is not None and reading.peak_bytes > plan.limit_bytes:
            text = f"{over_limit(reading, plan.limit_bytes)}\n{self._explanation(item, reading)}"
            raise GpuMemoryError(text, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to a failure what the test's memory has to do with it."""
        report = yield
        plan = _plan(item)
        is_ours = call.excinfo is not None and isinstance(call.excinfo.value, GpuMemoryError)
        if plan is not None and report.failed and call.when in {"setup", "call"} and not is_ours:
            text = self._around(item, plan)
            if text:
                report.sections.append(("GPU memory", text))
        return report

    def _around(self, item: pytest.Item, plan: MarkerPlan) -> str:
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


def _plan(item: pytest.Item) -> MarkerPlan | None:
    """Return the test's plan, where it is carried out in this process."""
    plan = item.stash.get(PLAN, None)
    return plan if plan is not None and plan.card is None and plan.problem is None else None


@dataclass(frozen=True, slots=True)
class Reading:
    """Figures of one test.

    Attributes:
        peak_bytes: Most bytes that were allocated at one time, on the GPU that had the most.
        start_bytes: Bytes that were allocated there before the test began.
        capacity_bytes: Bytes that PyTorch may take there.
        device: Index of that GPU.
        name: Its name; of a null GPU it says so.
        ooms: Times that the allocator ran out.
        reads: Times that data was read back from a null GPU, each time zeros.
        unknown_calls: Functions of CUDA's libraries that the null GPU does not serve.
        workspace_bytes: Bytes of the largest workspace that cuDNN took; 0 on a real GPU, which does not tell.
    """

    peak_bytes: int
    start_bytes: int
    capacity_bytes: int
    device: int
    name: str
    ooms: int
    reads: int
    unknown_calls: tuple[str, ...]
    workspace_bytes: int = 0


class Meter:
    """Measures from its making on.

    Args:
        eager: Whether CUDA is to be set up if it is not; else what happens before the program does so has no lines.
    """

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager
        self._peaks: PeakKeeper | None = None
        self._starts: dict[int, int] = {}
        self._ooms = 0
        self._is_recording = False
        self._reads = null_gpu.reads()
        if _is_ready(eager=eager):
            self._begin()

    @property
    def sees_gpu(self) -> bool:
        """Return whether there is a GPU that the test can use."""
        return _is_ready(eager=self._eager)

    def read(self) -> Reading | None:
        """Return the figures so far; None where CUDA was never used."""
        if not _is_ready(eager=False):
            return None
        import torch  # noqa: PLC0415 - sessions that do not need it must not pay for it

        peaks = (self._peaks or PeakKeeper(torch, range(torch.cuda.device_count()))).now()
        device = max(peaks, key=lambda index: peaks[index].allocated_bytes)
        on_null = null_gpu.is_null_gpu()
        return Reading(
            peak_bytes=peaks[device].allocated_bytes,
            start_bytes=self._starts.get(device, 0),
            capacity_bytes=null_gpu.capacity_bytes() if on_null else torch.cuda.mem_get_info(device)[1],
            device=device,
            name=torch.cuda.get_device_name(device) + (" (null GPU)" if on_null else ""),
            ooms=sum(one.ooms for one in peaks.values()) - self._ooms,
            reads=null_gpu.reads() - self._reads,
            unknown_calls=null_gpu.unknown_calls() if on_null else (),
            workspace_bytes=null_gpu.workspace_bytes(),
        )

    def snapshot(self) -> dict[str, Any] | None:
        """Return the allocator's history since the beginning; None where none was recorded."""
        if not self._is_recording:
            return None
        import torch  # noqa: PLC0415 - as above

        found: dict[str, Any] = torch.cuda.memory._snapshot()  # noqa: SLF001 - the only way
        return found

    def close(self) -> None:
        """End the recording; blocks that live on keep their lines."""
        if self._peaks is not None:
            self._peaks.close()
        if self._is_recording:
            _record(None)
            self._is_recording = False

    def _begin(self) -> None:
        import torch  # noqa: PLC0415 - as above

        torch.cuda.init()  # type: ignore[no-untyped-call]
        # What pytest keeps of a failed test for debuggers until the next test runs: its frames hold its tensors.
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - no public way; else the first test alone has them
        torch.cuda.empty_cache()
        null_gpu.begin_trial()
        self._starts = {index: torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}
        for index in self._starts:
            torch.cuda.reset_peak_memory_stats(index)
        self._peaks = PeakKeeper(torch, self._starts)
        self._ooms = sum(one.ooms for one in self._peaks.now().values())
        self._peaks.watch()
        _record("all")
        self._is_recording = True


def _is_ready(*, eager: bool) -> bool:
    if "torch" not in sys.modules and not (eager and find_spec("torch")):
        return False
    import torch  # noqa: PLC0415 - as above

    return torch.cuda.is_available() and (eager or torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _record(enabled: Literal["all"] | None) -> None:
    import torch  # noqa: PLC0415 - as above

    torch.cuda.memory._record_memory_history(  # noqa: SLF001 - the only way to the allocator's events
        enabled, context="alloc", stacks="python", max_entries=_MOST_EVENTS
    )
