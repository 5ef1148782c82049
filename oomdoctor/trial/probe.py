"""Run a probe: from a question to the largest micro-batch and its memory, with trials in a worker."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from oomdoctor.command.lone_rank import launch_of, names_ranks, nccl_memory, share_of_command
from oomdoctor.command.probe import dry_run_command, engine_for_command, plain_maximum, probe_command
from oomdoctor.command.trial import SocketDirectory
from oomdoctor.command.world import RankProbes, probe_ranks, probe_ranks_of_command, rank_for_dry_run
from oomdoctor.engines.choice import Engine, choose_engine
from oomdoctor.engines.monitor import OtherProcesses
from oomdoctor.errors import OomdoctorError, RanksNeededError, UsageError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.results import Outcome, Reason
from oomdoctor.results.document import Interrupted
from oomdoctor.search.memory_at_maximum import evaluation_memory, find_least_memory
from oomdoctor.search.probe_search import ProbeSearch, tested_plan
from oomdoctor.search.recommended import revised
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.answer import (
    Answer,
    DryRun,
    Findings,
    ProbeRun,
    ProfiledAnswer,
    build_result,
    document_of,
    optimizer_reason,
)
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.fastest import ThroughputRunner
from oomdoctor.trial.inference_costs import explain_evaluation, fits_without_evaluation, weigh_graph, weigh_logits
from oomdoctor.trial.process import CancelToken
from oomdoctor.trial.profile_runner import ProfileRunner
from oomdoctor.trial.several_devices import check_devices, told_devices, with_ddp
from oomdoctor.trial.warm_start import TracedWarmStart
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.command.fork_server import KeptForkServer
    from oomdoctor.engines.choice import Engine
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import EvaluationMemory, LeastMemory, ProbeDocument, ProbeResult, Trial
    from oomdoctor.search.bracket import SearchResult
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.worker_answers import LoadedTarget
    from oomdoctor.trial.worker_process import WorkerStarter


def probe(  # noqa: PLR0913 - a command is forked, and a file started, by something of its own
    request: ProbeRequest,
    progress: Progress,
    *,
    engine: Engine | None = None,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
    kept: KeptForkServer | None = None,
    partial: bool = False,
) -> ProbeRun:
    """Find the largest micro-batch that fits, and the plan that reaches the target batch.

    Args:
        request: The question.
        progress: Told of each stage and trial.
        engine: Where to run; None to choose by the request.
        stop: Ends the probe from another thread.
        start: Starts the workers of a file; None for fresh interpreters.
        kept: The fork server of several probes of a command; None for one of its own.
        partial: Whether an answer is worth having where an interrupt came before what follows it.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
        Interrupted: Somebody interrupted after the answer, which it has; only where it may be partial.
        KeyboardInterrupt: The stop was set, or somebody interrupted.
    """
    if request.command is not None:
        if launch_of(request) is None:
            return probe_command(request, progress, stop=stop, kept=kept, partial=partial)
        return probe_ranks_of_command(request, progress, stop=stop)
    if request.variant.devices > 1:
        return _probe_devices(request, progress, stop, start)
    try:
        if not names_ranks(request):
            return _probe_file(request, progress, engine, stop, start, partial=partial)
    except RanksNeededError:
        pass
    with WorkerPool(stop or CancelToken()) as workers:
        return _probe_ranks(request, progress, stop, start or workers.start)


def probe_document(request: ProbeRequest, progress: Progress) -> ProbeDocument:
    """Probe as `probe` does, and return the document, or raise `Interrupted` with that of an answer."""
    return document_of(probe(request, progress, partial=True))


def _probe_devices(
    request: ProbeRequest, progress: Progress, stop: CancelToken | None, start: WorkerStarter | None
) -> ProbeRun:
    """Probe several devices of one process, and as many processes with a device each besides."""
    names_ranks(request)  # which refuses both at once
    check_devices(request, engine_for(request).kind)
    run = _probe_file(replace(request, profiles=False), progress, None, stop, start)
    progress.stage("DistributedDataParallel on as many devices")
    try:
        ddp: ProbeResult | OomdoctorError = probe(with_ddp(request), progress, stop=stop, start=start).result
    except OomdoctorError as error:
        ddp = error
    return told_devices(run, request.variant.devices, ddp)


def _probe_ranks(request: ProbeRequest, progress: Progress, stop: CancelToken | None, start: WorkerStarter) -> ProbeRun:
    """Probe ranks of a file's world; see `oomdoctor.command.world`."""

    def probe_one(own: ProbeRequest, known: int, told: Progress, ended: CancelToken | None) -> ProbeRun:
        asked = request.profile_micro_batch  # whose memory each rank tells
        return _probe_file(own, told, None, ended, start, known=0 if asked else known)

    def run_at(own: ProbeRequest, size: int) -> Trial:
        with _running(own, progress, None, stop, start) as run:
            return run.probe_search.run(size, run.source.capacity_bytes)

    return probe_ranks(request, progress, RankProbes(engine_for, probe_one, run_at), stop)


def _probe_file(  # noqa: PLR0913 - as `probe`
    request: ProbeRequest,
    progress: Progress,
    engine: Engine | None,
    stop: CancelToken | None,
    start: WorkerStarter | None,
    *,
    known: int = 0,
    partial: bool = False,
) -> ProbeRun:
    """Probe a file; where a rank before this one fits `known`, memory is recorded only if this one fits less."""
    found: Findings | None = None
    is_whole = True
    try:
        with _running(request, progress, engine, stop, start) as run:
            found = _answered(request, run)
            for more in _findings(request, run, progress, found, known):
                found = more
    except KeyboardInterrupt:
        if found is None or not partial:
            raise
        found, is_whole = found.interrupted(), False
    guidance = None if run.warm_start is None or found.search is None else run.warm_start.guidance()
    found = replace(found, guidance=guidance, moved=run.others.moved())
    result = build_result(request, run.engine, run.source, run.others, found)
    if request.variant.lone_rank is not None:
        parallel = Reason("parallel", run.loaded.found["parallelize"])
        nccl = nccl_memory(run.source.notes.communicators)
        result = replace(result, nccl=nccl, reasons=(*result.reasons, parallel))
    host_bytes = run.source.host_bytes.get(result.micro_batch.maximum, 0)
    used = run.source.dependencies()
    whole = ProbeRun(result, run.loaded.versions, used, run.loaded.changes, host_bytes, found.cost, is_whole)
    if not is_whole:
        raise Interrupted(document_of(whole))
    return whole


def _answered(request: ProbeRequest, run: _Run) -> Findings:
    """Search, and return the answer."""
    found = Findings(run.loaded, None, None, (), ProfiledAnswer())
    if run.loaded.placement_error:
        return found
    search = run.probe_search.find_maximum(run.loaded.weights_bytes or 0)
    if run.warm_start is not None:
        run.warm_start.close()  # what it holds of the host's memory is of no more use
    recommended = run.probe_search.find_recommended(search, request.headroom)
    answer = _answer(request, run, search, recommended)
    return replace(found, search=search, answer=answer, trials=tuple(run.probe_search.trials))


def _findings(request: ProbeRequest, run: _Run, progress: Progress, found: Findings, known: int) -> Iterator[Findings]:
    """Yield the answer each time with more of what follows it."""
    search, answer = found.search, found.answer
    maximum = 0 if search is None else search.maximum
    if known and (request := replace(request, profiles=request.profiles and 0 < maximum < known)).profiles:
        request = replace(request, profile_micro_batch=None)
    if search is not None and answer is not None:
        _take_more_steps(request, run, search)
        yield (found := replace(found, evaluation=_evaluation(request, run, search)))
        if run.engine.kind == "trace" or not request.profiles:
            run.probe_search.try_profiled(request.profile_micro_batch, maximum)
        if request.fastest and maximum:
            timing = ThroughputRunner(request, run.source, run.probe_search, run.engine.kind == "cuda", progress)
            found = replace(found, throughput=timing.run(maximum, answer.recommended))
        yield (found := replace(found, trials=tuple(run.probe_search.trials)))
    if request.profiles:
        share = share_of_command(request)
        runner = ProfileRunner(request, run.engine, run.source, found.trials, share, progress)
        yield (found := replace(found, recorded=runner.record(maximum)))
    if request.counts_cost and 0 < (size := request.profile_micro_batch or maximum) <= maximum:
        yield (found := replace(found, cost=run.source.count_cost(size)))
    # Last, since what a convolution does without is kept by PyTorch for the rest of the process.
    if request.profiles and answer is not None:
        yield replace(found, least_memory=_least_memory(run, answer.recommended or maximum))


def _take_more_steps(request: ProbeRequest, run: _Run, search: SearchResult) -> None:
    """Note what the maximum takes beyond its trial; where nothing fits, what would."""
    source, variant, maximum = run.source, request.variant, search.maximum
    if maximum:
        source.outlast(maximum, micro_steps=run.probe_search.micro_steps(maximum))
        weigh_graph(source, variant, maximum)
        weigh_logits(source, variant, maximum)
        return
    ran_out = [trial for trial in run.probe_search.trials if trial.outcome is Outcome.OOM]
    if ran_out and (variant.evaluation is not None or variant.mode == "eval"):
        explain_evaluation(source, variant, min(ran_out, key=lambda trial: trial.micro_batch))


class TrialsOfBuckets:
    """Runs trials of buckets that take turns, in one worker; use it as a context manager.

    Each leaves the headroom of the question free, and accumulates where a target batch is given.

    Args:
        request: The question.
        progress: Told of each stage and trial.
        start: Starts the worker.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
    """

    def __init__(self, request: ProbeRequest, progress: Progress, start: WorkerStarter) -> None:
        self._start = start
        self._request = request
        self._progress = progress
        self._end = ExitStack()

    def __enter__(self) -> Self:
        asked = replace(self._request, guide=False)
        self._run = self._end.enter_context(_running(asked, self._progress, None, start=self._start))
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def run(self, percent: int) -> Trial:
        """Run one trial at a percentage of the buckets' samples.

        Raises:
            TargetError: It failed for another reason than memory.
        """
        source = self._run.source
        doing = "evaluating" if self._request.variant.mode == "eval" else "training on"
        self._progress.stage(f"{doing} all buckets in turn, at {percent} % of their samples")
        trial = source.run(
            percent,
            micro_steps=1 if self._request.target_batch is None else 2,
            allowed_bytes=int(source.capacity_bytes * (1 - self._request.headroom)),
        )
        if trial.outcome is Outcome.FAILED:
            hint = "all buckets share one model, built at their largest sizes; leave out a size that is the model's own"
            raise self._run.probe_search.failure(trial, named=f"{doing} all buckets in turn", hint=hint)
        return trial


def dry_run(request: ProbeRequest, progress: Progress) -> DryRun:
    """Load the target and run one trial at the smallest size.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
    """
    if request.command is not None:
        return dry_run_command(request, progress)
    with closing(SocketDirectory()) as objects:
        try:
            if not names_ranks(request):
                return _dry_run_file(request, progress)
        except RanksNeededError:
            pass
        return _dry_run_file(rank_for_dry_run(request, engine_for, str(objects.path)), progress)


def _dry_run_file(request: ProbeRequest, progress: Progress) -> DryRun:
    with _running(replace(request, guide=False), progress, None) as run:
        reason = optimizer_reason(request, run.loaded)
        role = "build_optimizer" if request.variant.mode == "train" else reason.subject
        found = {**run.loaded.found, role: reason.text}
        trial = None if run.loaded.placement_error else _smallest(run)
        return DryRun(run.engine, replace(run.loaded, found=found), trial)


def _smallest(run: _Run) -> Trial:
    """Run one trial at the smallest size that the model accepts; a batch norm needs two samples."""
    for size in (1, 2):
        trial = run.probe_search.run(size, run.source.capacity_bytes)
        if trial.outcome is not Outcome.FAILED:
            return trial
    raise run.probe_search.failure(trial)


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
    is_for_file_to_say = request.target_batch is None and request.world_size > 1  # which may have ranks
    per_device = None if is_for_file_to_say else share_of_command(request)
    reference = parse_reference(request.target, directory=request.directory, options=request.options)
    engine = engine or engine_for(request)
    others = OtherProcesses((request.device or "0") if engine.kind == "cuda" else None)
    with (
        _warm_start(request, reference, engine, stop) as warm_start,
        # What replaces a worker is forked: a target that keeps memory has a new one for each trial.
        WorkerPool(stop or CancelToken()) as workers,
        WorkerTrialSource(request, reference, engine.environment, stop, start, start or workers.start) as source,
    ):
        source.others_bytes = others.before_bytes or 0
        progress.stage(f"loading {request.target}")
        if warm_start is not None:
            warm_start.begin(source.device())
        loaded = source.load()
        per_device = share_of_command(request)
        asked_bytes = request.memory_bytes or request.card_bytes
        if asked_bytes is not None and asked_bytes > loaded.total_bytes:
            option = "--memory" if request.memory_bytes is None else "--capacity"
            raise UsageError(
                f"`{option}` asks for {format_size(asked_bytes)}, and {loaded.name} has "
                f"{format_size(loaded.total_bytes)}",
                hint="name a larger card with `--gpu`; a local GPU can only play a smaller one",
            )
        probe_search = ProbeSearch(source, progress, per_device, warm_start, searched=request.variant.searched)
        yield _Run(engine, others, source, loaded, probe_search, warm_start)
        source.dependencies()  # now, while the worker can say


def _warm_start(
    request: ProbeRequest, reference: Reference, engine: Engine, stop: CancelToken | None
) -> AbstractContextManager[TracedWarmStart | None]:
    """Return a warm start for trials on a real GPU, whose steps take time; elsewhere a trial is as quick as a trace."""
    if not request.guide or engine.kind != "cuda":
        return nullcontext()
    return TracedWarmStart(request, reference, engine.environment, stop)


def _least_memory(run: _Run, size: int) -> LeastMemory | None:
    """Return the least memory in which a size runs, where workspaces are optional; None where nothing tells of them."""
    steps = run.probe_search.micro_steps(size)
    return find_least_memory(
        run.probe_search.trials,
        size,
        lambda allowed_bytes: run.source.run(size, micro_steps=steps, allowed_bytes=allowed_bytes),
    )


def _evaluation(request: ProbeRequest, run: _Run, search: SearchResult) -> EvaluationMemory | None:
    """Return what an evaluation between the training steps takes; None where none was asked for, or nothing fits."""
    asked = request.variant.evaluation
    if asked is None:
        return None

    def fits_without(size: int) -> bool:
        return fits_without_evaluation(run.source, size, run.probe_search.micro_steps(size))

    return evaluation_memory(asked, run.probe_search.trials, search.maximum, fits_without)


def _answer(request: ProbeRequest, run: _Run, search: SearchResult, recommended: int) -> Answer:
    """Return what follows from the maximum: a plan with sizes up to it and one up to the recommended size, each run."""
    if request.variant.searched is not None:
        return Answer(recommended)
    probe_search, batch, devices = run.probe_search, request.target_batch, request.world_size
    gradient_bytes = run.loaded.weights_bytes or 0
    plain = plain_maximum(probe_search, run.source, search, share_of_command(request), gradient_bytes)
    if batch is None:
        return Answer(recommended)
    plan = tested_plan(probe_search, batch, devices, maximum=search.maximum, recommended=recommended)
    allowed_bytes = int(run.source.capacity_bytes * (1 - request.headroom))
    recommended = revised(recommended, probe_search.trials, maximum=search.maximum, allowed_bytes=allowed_bytes)
    careful = plan
    if plan is not None and max(plan.micro_batches) > recommended:
        careful = tested_plan(probe_search, batch, devices, maximum=recommended, recommended=recommended)
    return Answer(recommended, plan, careful, plain)


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
        card_bytes=request.card_bytes,
        reserve_bytes=request.reserve_bytes,
        base=request.environment(os.environ),
    )
