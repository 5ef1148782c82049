"""Run a probe: from a question to the largest micro-batch, with trials in a worker."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor.command.probe import dry_run_command, engine_for_command, probe_command
from oomdoctor.engines.choice import Engine, choose_engine
from oomdoctor.errors import UsageError
from oomdoctor.search.accumulation import per_device_target
from oomdoctor.search.probe_search import ProbeSearch, tested_plan
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.answer import DryRun, Findings, OtherProcesses, ProbeRun, build_result
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.profile_runner import ProfileRunner
from oomdoctor.trial.warm_start import TracedWarmStart
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Accumulation
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.client import WorkerStarter
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.protocol import LoadedTarget


def probe(
    request: ProbeRequest,
    progress: Progress,
    *,
    engine: Engine | None = None,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
) -> ProbeRun:
    """Find the largest micro-batch that fits, and the plan that reaches the target batch.

    Args:
        request: The question.
        progress: Told of each stage and trial.
        engine: Where to run; None to choose by the request.
        stop: Ends the probe from another thread.
        start: Starts the workers of a file; None for fresh interpreters.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    if request.command is not None:
        return probe_command(request, progress, stop=stop)
    with _running(request, progress, engine, stop, start) as run:
        search = None if run.loaded.placement_error else run.probe_search.find_maximum(run.loaded.weights_bytes or 0)
        if run.warm_start is not None:
            run.warm_start.close()  # what it holds of the host's memory is of no more use
        recommended = 0 if search is None else run.probe_search.find_recommended(search, request.headroom)
        plan = None if search is None else _plan(request, run.probe_search, search.maximum, recommended)
        if search is not None and run.engine.kind == "trace":
            run.probe_search.try_profiled(request.profile_micro_batch, search.maximum)
        trials = tuple(run.probe_search.trials)
        runner = ProfileRunner(request, run.engine, run.source, trials, progress)
        recorded = runner.record(0 if search is None else search.maximum)
    guidance = None if run.warm_start is None or search is None else run.warm_start.guidance()
    findings = Findings(run.loaded, search, recommended, plan, trials, recorded, run.others.moved(), guidance)
    result = build_result(request, run.engine, run.source, run.others, findings)
    return ProbeRun(result, run.loaded.versions, run.source.dependencies())


def dry_run(request: ProbeRequest, progress: Progress) -> DryRun:
    """Load the target and run one trial at the smallest size.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
    """
    if request.command is not None:
        return dry_run_command(request, progress)
    with _running(replace(request, guide=False), progress, None) as run:
        return DryRun(run.engine, run.loaded, None if run.loaded.placement_error else run.probe_search.try_smallest())


@dataclass(frozen=True, slots=True)
class _Run:
    """Worker with the target loaded, the search that runs trials in it, and its warm start."""

    engine: Engine
    others: OtherProcesses
    source: WorkerTrialSource
    loaded: LoadedTarget
    probe_search: ProbeSearch
    warm_start: TracedWarmStart | None


@contextmanager
def _running(
    request: ProbeRequest,
    progress: Progress,
    engine: Engine | None,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
) -> Iterator[_Run]:
    """Check the question before anything is started, start a worker, and end it with all that it started."""
    per_device = per_device_target(request.target_batch, request.world_size)
    reference = parse_reference(request.target, directory=request.directory)
    engine = engine or engine_for(request)
    others = OtherProcesses((request.device or "0") if engine.kind == "cuda" else None)
    with (
        _warm_start(request, reference, engine, stop) as warm_start,
        WorkerTrialSource(request, reference, engine.environment, stop, start) as source,
    ):
        progress.stage(f"loading {request.target}")
        if warm_start is not None:
            warm_start.begin(source.device())
        loaded = source.load()
        _check_memory(request, loaded)
        probe_search = ProbeSearch(source, progress, per_device, warm_start)
        yield _Run(engine, others, source, loaded, probe_search, warm_start)
        source.dependencies()  # now, while the worker can say


def _warm_start(
    request: ProbeRequest, reference: Reference, engine: Engine, stop: CancelToken | None
) -> AbstractContextManager[TracedWarmStart | None]:
    """Return a warm start for trials on a real GPU, whose steps take time; elsewhere a trial is as quick as a trace."""
    if not request.guide or engine.kind != "cuda":
        return nullcontext()
    return TracedWarmStart(request, reference, engine.environment, stop)


def _plan(request: ProbeRequest, probe_search: ProbeSearch, maximum: int, recommended: int) -> Accumulation | None:
    batch, devices = request.target_batch, request.world_size
    return tested_plan(probe_search, batch, devices, maximum=maximum, recommended=recommended)


def engine_for(request: ProbeRequest) -> Engine:
    """Return where the trials of a question run; the null GPU is built where it is needed.

    Raises:
        UsageError: The question contradicts itself.
        NoAnswerError: No device.
    """
    if request.command is not None:
        return engine_for_command(request)
    return choose_engine(
        engine=request.engine,
        gpu=request.gpu,
        device=request.device,
        memory_bytes=request.memory_bytes,
        base=request.environment(os.environ),
    )


def _check_memory(request: ProbeRequest, loaded: LoadedTarget) -> None:
    if request.memory_bytes is not None and request.memory_bytes > loaded.total_bytes:
        raise UsageError(
            f"`--memory` asks for {format_size(request.memory_bytes)}, and {loaded.name} has "
            f"{format_size(loaded.total_bytes)}",
            hint="name a larger card with `--gpu`; a local GPU can only play a smaller one",
        )
