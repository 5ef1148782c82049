"""Probe a world of ranks that do not exist: each rank that is asked about alone, and the least of their answers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor.command.lone_rank import mesh_of, share_of_command
from oomdoctor.command.probe import engine_for_command, probe_command
from oomdoctor.command.supervisor import CommandSupervisor
from oomdoctor.command.trial import SocketDirectory
from oomdoctor.errors import UsageError
from oomdoctor.results import EnvironmentVariable, LoneRank, Outcome, RankResult, Reason
from oomdoctor.run.launcher import parse_ranks
from oomdoctor.search.probe_search import micro_steps, share_of
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import ProbeResult, Trial
    from oomdoctor.trial.answer import ProbeRun
    from oomdoctor.trial.process import CancelToken


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


def probe_ranks(request: ProbeRequest, progress: Progress, *, stop: CancelToken | None = None) -> ProbeRun:
    """Probe each rank that is asked about, alone, and answer with the one whose maximum is the smallest.

    Args:
        request: The question; its launcher starts fewer ranks than its world has.
        progress: Told of each stage and trial.
        stop: Ends the probe from another thread.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The command is at fault, or does what a rank cannot do alone.
        NoAnswerError: No null GPU, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    mesh = mesh_of(request)
    request = replace(request, world_size=mesh.world_size)
    ranks = parse_ranks(request.ranks, mesh.world_size, "--rank", mesh.pipeline_ranks)
    share_of(request.target_batch, mesh.data_parallel if request.target_batch else 1)  # refused before anything runs
    if engine_for_command(request).kind != "null":
        raise UsageError(
            "ranks run alone on the null GPU only, and a GPU of this machine was chosen",
            hint="name the card with `--gpu`, such as `--gpu h100-sxm`",
        )
    with closing(SocketDirectory()) as objects:  # which a guardian removes where this process cannot
        probed: list[_Probed] = []
        for rank in ranks:
            progress.stage(f"rank {rank} of {request.world_size}")
            known = min((each.run.result.micro_batch.maximum for each in probed), default=0)
            own = _request_of(request, rank, str(objects.path), known)
            probed.append(_Probed(rank, own, probe_command(own, progress, stop=stop)))
        limiting = min(probed, key=lambda each: each.order)
        answer = limiting.run.result
        told = tuple(_rank_result(each, answer.micro_batch.maximum, stop) for each in probed)
    recommended = min(each.recommended for each in told)
    result = replace(
        answer,
        micro_batch=replace(answer.micro_batch, recommended=recommended),
        ranks=told,
        limited_by_rank=limiting.rank,
        reasons=(*answer.reasons, *_reasons(request, told, limiting.rank)),
        warnings=(*answer.warnings, *_others_warnings(probed, limiting)),
    )
    return replace(limiting.run, result=result)


def _request_of(request: ProbeRequest, rank: int, objects: str, known: int) -> ProbeRequest:
    """Return the question of one rank; what an earlier one found is run too, so that their memory can be compared."""
    variables = (*request.variant.environment, EnvironmentVariable("OOMDOCTOR_LONE_OBJECTS", objects))
    variant = replace(request.variant, lone_rank=LoneRank(rank, request.world_size), environment=variables)
    size = known or request.profile_micro_batch
    return replace(request, variant=variant, world_size=mesh_of(request).data_parallel, profile_micro_batch=size)


def _trial_at(result: ProbeResult, size: int) -> Trial | None:
    found = [trial for trial in result.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
    return max(found, key=lambda trial: trial.allowed_bytes, default=None)


def _rank_result(probed: _Probed, size: int, stop: CancelToken | None) -> RankResult:
    result = probed.run.result
    trial = _trial_at(result, size) or _run_at(probed.request, size, stop)
    return RankResult(
        rank=probed.rank,
        maximum=result.micro_batch.maximum,
        recommended=result.micro_batch.recommended,
        limited_by=result.micro_batch.limited_by,
        peak_allocated_bytes=None if trial is None else trial.peak_allocated_bytes,
        peak_reserved_bytes=None if trial is None else trial.peak_reserved_bytes,
        phases=() if trial is None else trial.phases,
    )


def _run_at(request: ProbeRequest, size: int, stop: CancelToken | None) -> Trial | None:
    """Run a rank at the answer of another; None where nothing fits."""
    if size == 0:
        return None
    with CommandSupervisor(replace(request, fresh=True), engine_for_command(request), stop) as supervisor:
        return supervisor.first(size, micro_steps(size, share_of_command(request)))


def _reasons(request: ProbeRequest, ranks: Sequence[RankResult], limiting: int) -> list[Reason]:
    names, world = ", ".join(str(each.rank) for each in ranks), request.world_size
    ran = f"each of {names} of {world} ran alone on a null GPU, whose NCCL waits for nobody; `--rank` names others"
    found = [Reason("ranks", ran)]
    if request.target_batch is not None:
        sharing = mesh_of(request).data_parallel
        who = f"all {world} ranks are taken to" if request.mesh is None else f"{sharing} ranks of `{request.mesh}`"
        found.append(Reason("accumulation", f"{who} share the target batch"))
    return [*found, Reason("limited_by_rank", f"rank {limiting} {_difference(ranks, limiting)}")]


def _difference(ranks: Sequence[RankResult], limiting: int) -> str:
    """Return in what the limiting rank differs from the one that needs least."""
    own = next(each for each in ranks if each.rank == limiting)
    largest = max(ranks, key=lambda each: each.maximum)
    if own.maximum < largest.maximum:
        return f"has the smallest maximum, {own.maximum}; on rank {largest.rank} it is {largest.maximum}"
    least = min(ranks, key=lambda each: each.peak_reserved_bytes or 0)
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
