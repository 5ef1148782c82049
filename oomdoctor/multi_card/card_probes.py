"""A table of what fits each card, made by a probe of each on a null GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.multi_card.fit import FitTable
from oomdoctor.progress import SilentProgress
from oomdoctor.results import CardFit
from oomdoctor.search.accumulation import per_device_target
from oomdoctor.trial.probe import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.trial.answer import ProbeRun
    from oomdoctor.trial.process import CancelToken


def probe_cards(
    request: ProbeRequest, cards: Sequence[Card], progress: Progress, *, stop: CancelToken | None = None
) -> FitTable:
    """Probe the target on each of some cards, one after the other.

    Args:
        request: The question; what it says of a card is passed over.
        cards: The cards.
        progress: Told of each.
        stop: Ends it from another thread.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The target is at fault.
        NoAnswerError: The null GPU cannot run, a crash, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    per_device_target(request.target_batch, request.world_size)
    found: list[ProbeRun] = []
    for number, card in enumerate(cards, 1):
        progress.stage(f"probing {request.target} on {card.key}, {number} of {len(cards)}")
        found.append(probe(replace(request, gpu=card.key), SilentProgress(), stop=stop))
    rows = tuple(_row(card, answer) for card, answer in zip(cards, found, strict=True))
    last = found[-1]
    reasons = tuple(reason for reason in last.result.reasons if reason.subject == "allocator")
    return FitTable(rows, last.result.weights_bytes or 0, dict(last.versions), reasons, ())


def _row(card: Card, answer: ProbeRun) -> CardFit:
    result = answer.result
    sizes = result.micro_batch
    limited_by = sizes.limited_by if result.trials else "model"
    return CardFit(card.key, sizes.maximum, sizes.recommended, limited_by, result.accumulation, result.warnings)
