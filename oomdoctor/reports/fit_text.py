"""`oomdoctor gpus --fit` on the terminal: what fits each card, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.reports.gpus_text import Column, table
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.devices.card import Card
    from oomdoctor.output import Terminal
    from oomdoctor.probing.fitting.fit import Fits
    from oomdoctor.probing.fitting.fitted import Fitted
    from oomdoctor.probing.request import ProbeRequest

_LIMITS: Final = {
    "memory": "memory",
    "target": "target batch",
    "limit": "a limit that is not memory",
    "model": "the model alone does not fit",
}

_HOW: Final = {
    "trace": "traced: what a step allocates was placed on a simulated allocator of each card's size",
    "null": "probed: the step ran on a null GPU of each card's size, with PyTorch's own allocator",
}


def render_fits(request: ProbeRequest, found: Fits, cards: Sequence[Card], terminal: Terminal) -> str:
    """What fits each card, and below it what the columns say."""
    rows = found.rows
    columns = [
        Column("--gpu", [row.gpu for row in rows]),
        Column("memory", [format_size(card.total_bytes) for card in cards], right=True),
        Column("largest", [_size(row.maximum) for row in rows], right=True),
        Column("recommended", [_size(row.recommended) for row in rows], right=True),
        Column("steps", [_steps(row) for row in rows], right=True),
        Column("limited by", [_limit(row) for row in rows]),
    ]
    return "\n".join([*table(columns, terminal), "", *_legend(request, found), ""])


def _legend(request: ProbeRequest, found: Fits) -> list[str]:
    devices = "" if request.world_size == 1 else f" on {request.world_size} devices"
    asked = f"{request.target}, {request.precision}, a target batch of {request.target_batch}{devices}"
    return [
        f"{asked}; {len(found.rows)} cards, {format_size(found.weights_bytes)} of weights",
        f"largest: the largest micro-batch; recommended: one that leaves {request.headroom:.0%} of the capacity free",
        "steps: accumulation steps that reach the target batch",
        _HOW[request.engine],
        *(f"allocator: {reason.text}" for reason in found.reasons),
        *_cautions(found),
    ]


def _cautions(found: Fits) -> list[str]:
    asked = ", ".join(f"`{question}`" for question in found.questions)
    told = f"note: the target asks about its GPU ({asked}), and was answered for one card; `probe --gpu` asks for each"
    notes = [f"{row.gpu}: {note}" for row in found.rows for note in row.notes]
    return [*([told] if asked else []), *notes]


def _size(micro_batch: int) -> str:
    return str(micro_batch) if micro_batch else "-"


def _steps(row: Fitted) -> str:
    return "-" if row.plan is None else str(row.plan.steps)


def _limit(row: Fitted) -> str:
    return _LIMITS[row.limited_by]
