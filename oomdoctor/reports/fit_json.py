"""`oomdoctor gpus --fit --json`: the result of its document; see `schemas/fit.schema.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.serialisation import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.devices.card import Card
    from oomdoctor.probing.fitting.fit import Fits
    from oomdoctor.probing.fitting.fitted import Fitted
    from oomdoctor.probing.request import ProbeRequest


def result_of(request: ProbeRequest, found: Fits, cards: Sequence[Card]) -> dict[str, object]:
    """The question, and what fits each card."""
    return {
        "target": request.target,
        "target_batch": request.target_batch,
        "world_size": request.world_size,
        "precision": request.precision,
        "optimizer": request.optimizer,
        "headroom": request.headroom,
        "engine": request.engine,
        "weights_bytes": found.weights_bytes,
        "questions": [*found.questions],
        "reasons": encode(found.reasons),
        "cards": [_card(card, row) for card, row in zip(cards, found.rows, strict=True)],
    }


def _card(card: Card, row: Fitted) -> dict[str, object]:
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
