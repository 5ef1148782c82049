"""Probe a command: find the largest micro-batch, and the words of the command that reach the target batch."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.axes import check_placeholder
from oomdoctor.command.lone_rank import nccl_memory, share_of_command, sizes_of
from oomdoctor.command.notes import reasons, warnings
from oomdoctor.command.supervisor import CommandSupervisor
from oomdoctor.command.template import accumulates, check_command, fill_command, fill_value
from oomdoctor.engines.choice import choose_engine
from oomdoctor.engines.monitor import OtherProcesses
from oomdoctor.request import command_line
from oomdoctor.results import Accumulation, CommandPlan, EditedLiteral, Outcome, UniformPlan
from oomdoctor.results.document import Interrupted
from oomdoctor.run.environment import find_interpreter, torch_of
from oomdoctor.search.bracket import find_plain
from oomdoctor.search.memory_at_maximum import find_least_memory
from oomdoctor.search.probe_search import ProbeSearch, plan_accumulation
from oomdoctor.trial.answer import Answer, DryRun, Findings, ProbeRun, ProfiledAnswer, build_result, document_of
from oomdoctor.trial.dependencies import UNWATCHED
from oomdoctor.trial.worker_answers import HeldMemory, LoadedTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.command.fork_server import KeptForkServer
    from oomdoctor.engines.choice import Engine
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import LeastMemory, Trial
    from oomdoctor.search.bracket import SearchResult
    from oomdoctor.search.trial_source import TrialSource
    from oomdoctor.target.literals import FoundLiteral
    from oomdoctor.trial.process import CancelToken


_MOST_STEPS_RUN: Final = 8
"""Accumulation steps with which a plan is run; more take time and, but for prefetched batches, no more memory."""


def engine_for_command(request: ProbeRequest) -> Engine:
    """Choose the engine for the trials of a command, by the torch that the command's own Python has.

    Raises:
        UsageError: The question contradicts itself, or the command cannot be started.
        NoAnswerError: No device, or its Python has no torch.
    """
    command = request.command or ()
    check_command(command, request.directory, os.environ, [each.value for each in request.literals])
    if (searched := request.variant.searched) is not None:
        check_placeholder(searched.name, request.templates, f"--largest {searched.name}")
    return choose_engine(
        engine=request.engine,
        gpu=request.gpu,
        device=request.device,
        memory_bytes=request.memory_bytes,
        card_bytes=request.card_bytes,
        reserve_bytes=request.reserve_bytes,
        base=request.environment(os.environ),
        build=torch_of(find_interpreter(command, os.environ), os.environ),
        may_trace=False,
    )


def probe_command(
    request: ProbeRequest,
    progress: Progress,
    *,
    stop: CancelToken | None = None,
    kept: KeptForkServer | None = None,
    partial: bool = False,
) -> ProbeRun:
    """Find the largest micro-batch that fits, and the plan that reaches the target batch.

    Args:
        request: The question; its `command` says what to run.
        progress: Told of each stage and trial.
        stop: Ends the probe from another thread.
        kept: The fork server of several probes of the command; None for one of its own.
        partial: Whether an answer is worth having where an interrupt came before what follows it.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The command is at fault.
        NoAnswerError: No device, or a time limit.
        Interrupted: Somebody interrupted after the answer, which it has; only where it may be partial.
        KeyboardInterrupt: The stop was set, or somebody interrupted.
    """
    share = share_of_command(request)
    engine = engine_for_command(request)
    others = OtherProcesses((request.device or "0") if engine.kind == "cuda" else None)
    with CommandSupervisor(request, engine, stop, progress, kept) as supervisor:
        searched = request.variant.searched
        session = ProbeSearch(supervisor, progress, share, searched=searched)
        progress.stage(f"starting {request.target}")
        first = session.first_size
        steps = session.micro_steps(first)
        session.record(first, steps, lambda: supervisor.first(first, steps))
        search = session.find_maximum(supervisor.observations.gradient_bytes)
        session.try_profiled(request.profile_micro_batch, search.maximum)
        recommended = session.find_recommended(search, request.headroom)
        plain = None
        if accumulates(request.templates) and searched is None:
            plain = plain_maximum(session, supervisor, search, share, supervisor.observations.gradient_bytes)
        size = recommended or search.maximum
        own = 1 if accumulates(request.templates) else supervisor.observations.own_steps(size)
        has_plan = own == 1 and searched is None
        plan = _checked_plan(request, session, search.maximum, recommended) if has_plan else None
        supervisor.settle()

        def known() -> Findings:
            return Findings(
                loaded=_loaded(supervisor),
                search=search,
                answer=Answer(recommended, plan, plain_maximum=plain),
                trials=tuple(session.trials),
                recorded=ProfiledAnswer(
                    reasons=reasons(request, supervisor),
                    warnings=warnings(request, supervisor, search, session.trials),
                ),
                moved=others.moved(),
            )

        findings: Findings | None = None
        is_whole = True
        try:
            if search.maximum:
                supervisor.outlast(search.maximum, micro_steps=session.micro_steps(search.maximum))
            findings = known()
            if request.profiles and size:
                findings = replace(findings, least_memory=_least_memory(session, supervisor, size, progress))
        except KeyboardInterrupt:
            if not partial:
                raise
            findings, is_whole = (findings or known()).interrupted(), False
        result = build_result(request, engine, supervisor, others, findings)
        sizes = None if plan is None else plan.fixed_size
        if plan is None and searched is None and size and (own > 1 or request.target_batch is None):
            sizes = UniformPlan(size, own, size * own * request.world_size)
        words = _command_plan(request, supervisor.literals, sizes)
        uses = supervisor.uses
        used = UNWATCHED if uses is None else uses.dependencies(request.command or (), request.directory, os.environ)
        nccl = nccl_memory(supervisor.observations.communicators) if request.variant.lone_rank else None
        host_bytes = supervisor.observations.host_bytes.get(search.maximum, 0)
        result = replace(result, command_plan=words, nccl=nccl)
        found = ProbeRun(result, supervisor.versions, used, supervisor.changes, host_bytes, is_whole=is_whole)
        if not is_whole:
            raise Interrupted(document_of(found))
        return found


def _least_memory(
    session: ProbeSearch, supervisor: CommandSupervisor, size: int, progress: Progress
) -> LeastMemory | None:
    steps = session.micro_steps(size)

    def run(allowed_bytes: int) -> Trial:
        progress.stage(f"running micro-batch {size} with less memory, for cuDNN's workspaces are optional")
        return supervisor.run_within(size, micro_steps=steps, allowed_bytes=allowed_bytes)

    return find_least_memory(session.trials, size, run)


def plain_maximum(
    session: ProbeSearch, source: TrialSource, search: SearchResult, share: int | None, gradient_bytes: int
) -> int | None:
    """Return the largest size of a step that accumulates nothing; None where that is asked, or memory was no limit.

    Args:
        session: Runs the trials.
        source: What they are trials of.
        search: How the search ended.
        share: Samples per optimizer step on one device.
        gradient_bytes: Bytes of all gradients.
    """
    if share is None or not search.maximum or search.limited_by != "memory":
        return None
    capacity = source.capacity_bytes
    source.forget()
    return find_plain(
        lambda size: session.run(size, capacity, 1),
        session.trials,
        maximum=search.maximum,
        largest=share,
        capacity_bytes=capacity,
        gradient_bytes=gradient_bytes,
        predict_max=lambda low, high: source.predict_max(low, high, allowed_bytes=capacity, retries=True),
    )


def dry_run_command(request: ProbeRequest, progress: Progress) -> DryRun:
    """Run one trial at the smallest size.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The command is at fault.
        NoAnswerError: No device, or a time limit.
    """
    engine = engine_for_command(request)
    with CommandSupervisor(replace(request, fresh=True), engine) as supervisor:
        progress.stage(f"starting {request.target}")
        trial = supervisor.first(1, 1)
        plan = _command_plan(request, supervisor.literals, UniformPlan(1, 1, request.world_size))
        edits = {f"{each.file}, line {each.line}": f"{each.name} = {each.new}" for each in plan.literals}
        seen = {"command": command_line(plan.run or ()), **edits, "optimizer": supervisor.notes.optimizer_name}
        return DryRun(engine, replace(_loaded(supervisor), found=seen), trial)


def _checked_plan(request: ProbeRequest, session: ProbeSearch, maximum: int, recommended: int) -> Accumulation | None:
    """Return the plan with one size, since that is what a command takes, run with as many steps as it has.

    A command that is not told its accumulation steps takes one micro-batch in each, whatever the target.
    """
    share, limit = share_of_command(request), maximum
    if share is None or request.target_batch is None:
        return None
    if maximum and maximum < share and not accumulates(request.templates):
        return _plan_of(
            request, UniformPlan(size := recommended or maximum, 1, size * request.world_size), request.target_batch
        )
    while limit > 0:
        plan = plan_accumulation(request.target_batch, limit, request.world_size)
        chosen = plan.uniform or plan.fixed_size
        trial = session.tried(chosen.micro_batch, min(chosen.steps, _MOST_STEPS_RUN))
        if trial.outcome in (Outcome.FITS, Outcome.FAILED):  # which a smaller size would too, and a warning says so
            return _plan_of(request, chosen, request.target_batch)
        limit = recommended if recommended < limit else limit * 9 // 10
    return None


def _plan_of(request: ProbeRequest, chosen: UniformPlan, target_batch: int) -> Accumulation:
    return Accumulation(
        target_batch=target_batch,
        world_size=request.world_size,
        steps=chosen.steps,
        micro_batches=(chosen.micro_batch,) * chosen.steps,
        effective_batch=chosen.effective_batch,
        uniform=chosen if chosen.effective_batch == target_batch else None,
        fixed_size=chosen,
    )


def _loaded(supervisor: CommandSupervisor) -> LoadedTarget:
    device = supervisor.device
    if device is None:
        raise RuntimeError("a trial that did not fail has shown its device")
    return LoadedTarget(
        name=device.name,
        compute_capability=device.compute_capability,
        has_kernels=device.has_kernels,
        total_bytes=device.total_bytes,
        used_before_bytes=device.total_bytes - device.free_bytes,
        capacity_bytes=supervisor.capacity_bytes,
        weights_bytes=None,
        placement_error=None,
        held=HeldMemory(0, 0),
        phases=(),
        found={},
        versions=supervisor.versions,
        memory_fraction=1.0,
    )


def _command_plan(request: ProbeRequest, literals: Sequence[FoundLiteral], fixed: UniformPlan | None) -> CommandPlan:
    """Return what to start so that it trains with these sizes; None for sizes where nothing fits."""
    sizes = None if fixed is None else sizes_of(request, fixed.micro_batch, fixed.steps)
    words = request.command or ()
    edited = tuple(
        EditedLiteral(
            file=each.override.file,
            line=each.place.line,
            name=each.override.name,
            value=each.override.value,
            text=each.place.text,
            new=None if sizes is None else fill_value(each.override.value, sizes),
        )
        for each in literals
    )
    return CommandPlan(words, None if sizes is None else tuple(fill_command(words, sizes)), fixed, edited)
