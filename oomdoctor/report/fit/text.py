"""`oomdoctor gpus --fit` on the terminal, one card a line, and the result of its JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.codec import encode
from oomdoctor.report.gpus import Column, table
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.multi_card.fit import FitTable
    from oomdoctor.output import Terminal
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import CardFit


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


def render_fits(request: ProbeRequest, found: FitTable, cards: Sequence[Card], terminal: Terminal) -> str:
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


def _legend(request: ProbeRequest, found: FitTable) -> list[str]:
    devices = "" if request.world_size == 1 else f" on {request.world_size} devices"
    asked = f"{request.target}, {request.variant.precision}, a target batch of {request.target_batch}{devices}"
    return [
        f"{asked}; {len(found.rows)} cards, {format_size(found.weights_bytes)} of weights",
        f"largest: the largest micro-batch; recommended: one that leaves {request.headroom:.0%} of the capacity free",
        "steps: accumulation steps that reach the target batch",
        _HOW[request.engine],
        *(f"allocator: {reason.text}" for reason in found.reasons),
        *_cautions(found),
    ]


def _cautions(found: FitTable) -> list[str]:
    asked = ", ".join(f"`{question}`" for question in found.questions)
    told = f"note: the target asks about its GPU ({asked}), and was answered for one card; `probe --gpu` asks for each"
    notes = [f"{row.gpu}: {note}" for row in found.rows for note in row.notes]
    return [*([told] if asked else []), *notes]


def _size(micro_batch: int) -> str:
    return str(micro_batch) if micro_batch else "-"


def _steps(row: CardFit) -> str:
    return "-" if row.plan is None else str(row.plan.steps)


def _limit(row: CardFit) -> str:
    return _LIMITS[row.limited_by]


def result_of(request: ProbeRequest, found: FitTable, cards: Sequence[Card]) -> dict[str, object]:
    """The question, and what fits each card."""
    return {
        "target": request.target,
        "target_batch": request.target_batch,
        "world_size": request.world_size,
        "precision": request.variant.precision,
        "optimizer": request.variant.optimizer,
        "headroom": request.headroom,
        "engine": request.engine,
        "weights_bytes": found.weights_bytes,
        "questions": [*found.questions],
        "reasons": encode(found.reasons),
        "cards": [_card(card, row) for card, row in zip(cards, found.rows, strict=True)],
    }


def _card(card: Card, row: CardFit) -> dict[str, object]:
    return {
        "gpu": card.key,
        "name": card.name,
        "total_bytes": card.total_bytes,
        "capacity_bytes": card.capacity_bytes,
        "compute_capability": ".".join(map(str, card.compute_capability)),
        "micro_batch": {"maximum": row.maximum, "recommended": row.recommended, "limited_by": row.limited_by},
        "accumulation": None if row.plan is None else encode(row.plan),
        "notes": [*row.notes],
    }
