"""Probe a world of ranks that do not exist: each rank that is asked about alone, and the least of their answers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.host_memory import free_host_bytes
from oomdoctor.command.lone_rank import mesh_of, steps_of
from oomdoctor.command.probe import engine_for_command, probe_command
from oomdoctor.command.supervisor import CommandSupervisor
from oomdoctor.command.trial import SocketDirectory
from oomdoctor.errors import UsageError
from oomdoctor.results import EnvironmentVariable, LoneRank, Outcome, PhaseName, RankResult, Reason
from oomdoctor.run.launcher import parse_ranks, ranks_left
from oomdoctor.search.probe_search import share_of
from oomdoctor.trial.parallel import NamedProgress, default_jobs, run_all
from oomdoctor.trial.process import CancelToken
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.choice import Engine
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Phase, ProbeResult, Trial
    from oomdoctor.trial.answer import ProbeRun


_BYTES_OF_A_RANK: Final = 2 << 30
"""Host memory that a rank of a large model is taken to need: its processes have no data, and hold what torch does."""


@dataclass(frozen=True, slots=True)
class _Probed:
    """A rank that was probed.

    Attributes:
        rank: Its number.
        request: The question that was asked of it.
        run: Its answer.
    """

    rank: int
    request: ProbeRequest
    run: ProbeRun

    @property
    def order(self) -> tuple[int, int, int]:
        """The rank with the least of it limits the world: the smallest sizes, then the most memory."""
        result = self.run.result
        found = _trial_at(result, result.micro_batch.maximum)
        peak = 0 if found is None else found.peak_reserved_bytes or 0
        return result.micro_batch.maximum, result.micro_batch.recommended, -peak


@dataclass(frozen=True, slots=True)
class RankProbes:
    """Way to probe one rank, which is another one for a file than for a command.

    Attributes:
        engine_for: Returns where the trials of a question run.
        probe: Probes the one rank of a question; the number is the maximum of the first rank, or 0 for that one.
        run_at: Runs that rank once at a size.
    """

    engine_for: Callable[[ProbeRequest], Engine]
    probe: Callable[[ProbeRequest, int, Progress, CancelToken | None], ProbeRun]
    run_at: Callable[[ProbeRequest, int], Trial]


def probe_ranks_of_command(request: ProbeRequest, progress: Progress, *, stop: CancelToken | None = None) -> ProbeRun:
    """Probe ranks of a command whose launcher starts fewer than its world has; see `probe_ranks`."""

    def run_at(own: ProbeRequest, size: int) -> Trial:
        with CommandSupervisor(replace(own, fresh=True), engine_for_command(own), stop) as supervisor:
            return supervisor.first(size, steps_of(own, size))

    def probe_one(own: ProbeRequest, _: int, told: Progress, ended: CancelToken | None) -> ProbeRun:
        return probe_command(own, told, stop=ended)

    return probe_ranks(request, progress, RankProbes(engine_for_command, probe_one, run_at), stop)


def probe_ranks(
    request: ProbeRequest, progress: Progress, ways: RankProbes, stop: CancelToken | None = None
) -> ProbeRun:
    """Probe each rank that is asked about, alone, and answer with the one whose maximum is the smallest.

    The first is probed by itself: what is wrong with the question shows there, and its maximum is run by all others.

    Args:
        request: The question.
        progress: Told of each rank.
        ways: How one rank is probed.
        stop: Ends the probes from another thread.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The command is at fault, or does what a rank cannot do alone.
        NoAnswerError: No null GPU, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    mesh = mesh_of(request)
    request = replace(request, world_size=mesh.world_size)
    ranks = _ranks_of(request, ways.engine_for)
    with closing(SocketDirectory()) as objects:  # which a guardian removes where this process cannot

        def ask(rank: int, known: int, told: Progress, ended: CancelToken | None) -> _Probed:
            told.stage(f"rank {rank} of {request.world_size}")
            own = _request_of(request, rank, str(objects.path), known)
            return _Probed(rank, own, ways.probe(own, known, told, ended))

        first = ask(ranks[0], 0, progress, stop)
        others = partial(ask, known=first.run.result.micro_batch.maximum)
        probed = [first]
        while left := ranks_left(request.ranks, ranks, [each.rank for each in probed], str(objects.path)):
            probed += _side_by_side(others, left, progress, stop)
        probed.sort(key=lambda each: each.rank)
        limiting = min(probed, key=lambda each: each.order)
        answer = limiting.run.result
        told = tuple(_rank_result(each, answer.micro_batch.maximum, ways) for each in probed)
    recommended = min(each.recommended for each in told)
    result = replace(
        answer,
        micro_batch=replace(answer.micro_batch, recommended=recommended),
        variant=answer.variant and replace(request.variant, lone_rank=limiting.request.variant.lone_rank),
        ranks=told,
        limited_by_rank=limiting.rank,
        reasons=(*answer.reasons, *_reasons(request, told, limiting.rank)),
        warnings=(*answer.warnings, *_others_warnings(probed, limiting)),
    )
    return replace(limiting.run, result=result)


def _side_by_side(
    ask: Callable[..., _Probed], ranks: Sequence[int], progress: Progress, stop: CancelToken | None
) -> list[_Probed]:
    """Probe ranks at once, as many as there are cores and as the host has memory for."""
    free = free_host_bytes()
    jobs = default_jobs(len(ranks)) if free is None else min(default_jobs(len(ranks)), free // _BYTES_OF_A_RANK)
    if jobs <= 1:
        return [ask(rank, told=progress, ended=stop) for rank in ranks]
    lock = Lock()

    def piece(rank: int, ended: CancelToken) -> _Probed:
        return ask(rank, told=NamedProgress(progress, f"rank {rank}", lock), ended=ended)

    return run_all([partial(piece, rank) for rank in ranks], jobs, CancelToken(stop))


def rank_for_dry_run(request: ProbeRequest, engine_for: Callable[[ProbeRequest], Engine], objects: str) -> ProbeRequest:
    """Return the question of the first rank that is asked about.

    Args:
        request: The question.
        engine_for: Returns where its trials run.
        objects: Folder for what the rank tells others.
    """
    request = replace(request, world_size=mesh_of(request).world_size)
    return _request_of(request, _ranks_of(request, engine_for)[0], objects, 0)


def _ranks_of(request: ProbeRequest, engine_for: Callable[[ProbeRequest], Engine]) -> tuple[int, ...]:
    """Return the ranks that are asked about, once it is clear that they can run.

    Raises:
        UsageError: They cannot.
    """
    mesh = mesh_of(request)
    share_of(request.target_batch, mesh.data_parallel if request.target_batch else 1)  # refused before anything runs
    if (kind := engine_for(request).kind) != "null":
        chosen = "a GPU of this machine" if kind == "cuda" else "a trace"
        raise UsageError(
            f"ranks run alone on the null GPU only, and {chosen} was chosen",
            hint="name the card with `--gpu`, such as `--gpu h100-sxm`; `--engine null` says what is missing",
        )
    return parse_ranks(request.ranks, mesh.world_size, "--rank", mesh.pipeline_ranks)


def _request_of(request: ProbeRequest, rank: int, objects: str, known: int) -> ProbeRequest:
    """Return the question of one rank; what an earlier one found is run too, so that their memory can be compared."""
    variables = (*request.variant.environment, EnvironmentVariable("OOMDOCTOR_LONE_OBJECTS", objects))
    alone = LoneRank(rank, request.world_size)
    if request.command is None:
        alone = replace(alone, mesh=request.mesh, parallel=request.parallel)
    variant = replace(request.variant, lone_rank=alone, environment=variables)
    size = request.profile_micro_batch or known or None
    return replace(request, variant=variant, world_size=mesh_of(request).data_parallel, profile_micro_batch=size)


def _trial_at(result: ProbeResult, size: int) -> Trial | None:
    found = [trial for trial in result.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    return max(found, key=lambda trial: trial.allowed_bytes, default=None)


def _rank_result(probed: _Probed, size: int, ways: RankProbes) -> RankResult:
    result = probed.run.result
    trial = _trial_at(result, size) or (ways.run_at(probed.request, size) if size else None)
    return RankResult(
        rank=probed.rank,
        maximum=result.micro_batch.maximum,
        recommended=result.micro_batch.recommended,
        limited_by=result.micro_batch.limited_by,
        peak_allocated_bytes=None if trial is None else trial.peak_allocated_bytes,
        peak_reserved_bytes=None if trial is None else trial.peak_reserved_bytes,
        phases=() if trial is None else (*_loading(result, trial), *trial.phases),
    )


def _loading(result: ProbeResult, trial: Trial) -> list[Phase]:
    """Return the phase of loading, where that was before all trials and so is in none."""
    known = {phase.phase for phase in trial.phases}
    return [phase for phase in result.phases if phase.phase is PhaseName.LOAD and phase.phase not in known]


def _reasons(request: ProbeRequest, ranks: Sequence[RankResult], limiting: int) -> list[Reason]:
    names, world = ", ".join(str(each.rank) for each in ranks), request.world_size
    ran = f"each of {names} of {world} ran alone on a null GPU, whose NCCL waits for nobody; `--rank` names others"
    found = [Reason("ranks", ran)]
    if request.target_batch is not None:
        sharing = mesh_of(request).data_parallel
        share = (
            f"{sharing} ranks of `{request.mesh}` share" if sharing > 1 else f"each of `{request.mesh}` takes all of"
        )
        who = f"all {world} ranks are taken to share" if request.mesh is None else share
        found.append(Reason("accumulation", f"{who} the target batch"))
    return [*found, Reason("limited_by_rank", f"rank {limiting} {_difference(ranks, limiting)}")]


def _difference(ranks: Sequence[RankResult], limiting: int) -> str:
    """Return in what the limiting rank differs from the one that needs least."""
    own = next(each for each in ranks if each.rank == limiting)
    largest = max(ranks, key=lambda each: each.maximum)
    if own.maximum < largest.maximum:
        return f"has the smallest maximum, {own.maximum}; on rank {largest.rank} it is {largest.maximum}"
    largest = max(ranks, key=lambda each: each.recommended)
    if own.recommended < largest.recommended:
        return (
            f"has the smallest recommended size, {own.recommended}; on rank {largest.rank} it is {largest.recommended}"
        )
    least = min(ranks, key=lambda each: each.peak_reserved_bytes or 0)
    if len(ranks) == 1:
        return "is the only one that ran"
    if own.peak_reserved_bytes is None or own.peak_reserved_bytes == least.peak_reserved_bytes:
        return "is the first of those that ran; all of them reserve the same"
    phase = max(own.phases, key=lambda each: each.peak_allocated_bytes).phase
    more = own.peak_reserved_bytes - (least.peak_reserved_bytes or 0)
    return f"reserves {format_size(more)} more than rank {least.rank}, and its peak is in {phase}"


def _others_warnings(probed: Sequence[_Probed], limiting: _Probed) -> list[str]:
    """Return warnings of the other ranks that the limiting one has not."""
    said = set(limiting.run.result.warnings)
    return [
        f"rank {each.rank}: {warning}" for each in probed for warning in each.run.result.warnings if warning not in said
    ]
