"""The table that `fit` makes, by a probe of each card on a null GPU: PyTorch itself, in minutes and not seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.probing.accumulation import per_device_target
from oomdoctor.probing.fitting.fit import Fits
from oomdoctor.probing.fitting.fitted import Fitted
from oomdoctor.probing.probe import probe
from oomdoctor.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.devices.card import Card
    from oomdoctor.probing.found import Probe
    from oomdoctor.probing.request import ProbeRequest
    from oomdoctor.probing.stopping import Stop
    from oomdoctor.progress import Progress


def probe_cards(request: ProbeRequest, cards: Sequence[Card], progress: Progress, *, stop: Stop | None = None) -> Fits:
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
    found: list[Probe] = []
    for number, card in enumerate(cards, 1):
        progress.stage(f"probing {request.target} on {card.key}, {number} of {len(cards)}")
        found.append(probe(replace(request, gpu=card.key), SilentProgress(), stop=stop))
    rows = tuple(_row(card, answer) for card, answer in zip(cards, found, strict=True))
    last = found[-1]
    reasons = tuple(reason for reason in last.result.reasons if reason.subject == "allocator")
    return Fits(rows, last.result.weights_bytes or 0, dict(last.versions), reasons, ())


def _row(card: Card, answer: Probe) -> Fitted:
    result = answer.result
    sizes = result.micro_batch
    limited_by = sizes.limited_by if result.trials else "model"
    return Fitted(card.key, sizes.maximum, sizes.recommended, limited_by, result.accumulation, result.warnings)
