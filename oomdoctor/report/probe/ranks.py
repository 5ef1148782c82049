"""The sentences and tables of the ranks of a world, each of which ran alone."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import optional_size
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import NcclMemory, Phase, PhaseName, ProbeResult, RankResult


RANK_COLUMNS: Final = ("rank", "maximum", "recommended", "peak allocated", "peak reserved", "peak in")

_MOST_RANKS: Final = 6


def ranks_title(result: ProbeResult) -> str:
    """Return the heading of the ranks' table."""
    size = result.micro_batch.maximum
    return f"Ranks at micro-batch {size}, each run alone" if size else "Ranks, each run alone"


def rank_rows(result: ProbeResult) -> list[tuple[str, ...]]:
    """Return a row of text for each rank, in the order of `RANK_COLUMNS`; the one that limits the answer says so."""
    return [
        (
            f"{each.rank}, limits" if each.rank == result.limited_by_rank and len(result.ranks) > 1 else str(each.rank),
            str(each.maximum),
            str(each.recommended),
            optional_size(each.peak_allocated_bytes),
            optional_size(each.peak_reserved_bytes),
            ", ".join(phase.phase.value for phase in _highest_phase(each)),
        )
        for each in result.ranks
    ]


def _highest_phase(rank: RankResult) -> list[Phase]:
    return sorted(rank.phases, key=lambda phase: -phase.peak_allocated_bytes)[:1]


def rank_phases(result: ProbeResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows of the ranks' peaks by phase, side by side; no rows where nothing fits or one rank ran.

    Iterations that repeat the one before are left out.
    """
    ranks = [each for each in result.ranks if each.phases][:_MOST_RANKS]
    if len(ranks) < 2:  # noqa: PLR2004 - nothing to compare
        return (), []
    peaks = [{(phase.iteration, phase.phase): phase.peak_allocated_bytes for phase in each.phases} for each in ranks]
    repeated = set.intersection(*(set(_repeated(each.phases)) for each in ranks))
    keys = [key for key in dict.fromkeys(key for each in peaks for key in each) if key[0] not in repeated]
    rows = [
        (str(iteration or ""), phase.value, *(optional_size(each.get((iteration, phase))) for each in peaks))
        for iteration, phase in keys
    ]
    return ("iteration", "peak in", *(f"rank {each.rank}" for each in ranks)), rows


def _repeated(phases: Sequence[Phase]) -> list[int]:
    """Return the iterations whose peaks are those of the iteration before."""
    peaks: dict[int, dict[PhaseName, int]] = defaultdict(dict)
    for phase in phases:
        peaks[phase.iteration][phase.phase] = phase.peak_allocated_bytes
    return [iteration for iteration in peaks if peaks[iteration] == peaks.get(iteration - 1)]


def nccl(found: NcclMemory) -> str:
    """Return what is known of the memory of NCCL's communicators, which is in no other figure."""
    count = len(found.communicators)
    sizes = ", ".join(map(str, found.communicators[:_MOST_RANKS])) + (", ..." if count > _MOST_RANKS else "")
    made = f"{count} communicator{'' if count == 1 else 's'} (of {sizes} ranks)" if count else "no communicator"
    least, most = map(format_size, found.published_range_bytes)
    return (
        f"{made}; their memory is outside of PyTorch's allocator and not counted: {least} to {most} a process were "
        "reported; `--reserve SIZE` takes what yours need off the capacity"
    )
