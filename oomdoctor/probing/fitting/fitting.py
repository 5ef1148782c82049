"""The answers of many cards for a target that is loaded. Runs in the worker."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oomdoctor.probing.fitting.fitted import Fitted
from oomdoctor.probing.fitting.source import CardSource, Shared
from oomdoctor.probing.fitting.tracer import Tracer, as_boundless
from oomdoctor.probing.planning import checked_plan
from oomdoctor.probing.session import Session, micro_steps
from oomdoctor.progress import SilentProgress
from oomdoctor.tracing.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.devices.card import Card
    from oomdoctor.probing.trial import Setup
    from oomdoctor.tracing.device import EmulatedDevice

_FIRST_SIZE = 4
_BLOCKS_BEFORE_A_COLLECTION = 200_000
"""Blocks of simulated allocators refer to each other, and are made by the million."""


def begin(device: EmulatedDevice, cards: Sequence[Card]) -> Journal:
    """Have the device look like the first card and keep a journal; before the target is loaded."""
    device.card = as_boundless(cards[0], device.card)
    device.journal = Journal([*_by_capability(cards).values()])
    return device.journal


def _by_capability(cards: Sequence[Card]) -> dict[tuple[int, int], Card]:
    return {card.compute_capability: card for card in reversed(cards)}


class Fitting:
    """One target, and card after card.

    Args:
        setup: The model and how it trains.
        device: The emulated device.
        cards: All that will be asked about.
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share it.
        start_bytes: What is allocated between trials.
        weights_bytes: Bytes of parameters and buffers.
        explain: What to say of a trial that failed for another reason than memory.
    """

    def __init__(  # noqa: PLR0913 - each is a fact of its own, named by the caller
        self,
        *,
        setup: Setup,
        device: EmulatedDevice,
        cards: Sequence[Card],
        target_batch: int,
        world_size: int,
        start_bytes: int,
        weights_bytes: int,
        explain: Callable[[Any], dict[str, str | None] | None],
    ) -> None:
        if device.journal is None:
            raise RuntimeError("the journal is begun before the target is loaded")
        self._journal = device.journal
        self._tracer = Tracer(setup, device, self._journal, start_bytes)
        self._device = device
        self._cards = {card.key: card for card in cards}
        self._target_batch, self._world_size = target_batch, world_size
        self._share = target_batch // world_size
        self._weights_bytes = weights_bytes
        self._explain = explain
        self._shared: dict[tuple[int, int], Shared] = {}

    @property
    def questions(self) -> list[str]:
        """What the target asked about the GPU."""
        return sorted(self._journal.questions)

    def fit(self, key: str, headroom: float, capacity_bytes: int | None = None) -> Fitted:
        """One card's answer.

        Args:
            key: The card.
            headroom: Part of the capacity that the recommended size leaves free.
            capacity_bytes: What PyTorch may take of it, where that is not all that the context leaves.

        Raises:
            TargetError: The user's code is at fault.
            NoAnswerError: The step cannot be traced, or keeps memory.
        """
        card = self._cards[key]
        if capacity_bytes is not None:
            card = replace(card, context_bytes=card.total_bytes - capacity_bytes)
        source = CardSource(card, self._shared_of(card), lambda size: micro_steps(size, self._share), self._explain)
        first = min(_FIRST_SIZE, max(1, self._share - 1))
        if not source.has_room_for_model(first, micro_steps(first, self._share)):
            return Fitted(key, 0, 0, "model", None, ())
        session = Session(source, SilentProgress(), self._share)
        search = session.find_maximum(self._weights_bytes)
        recommended = session.find_recommended(search, headroom)
        plan = checked_plan(
            session, self._target_batch, self._world_size, maximum=search.maximum, recommended=recommended
        )
        return Fitted(key, search.maximum, recommended, search.limited_by, plan, search.notes)

    def _shared_of(self, card: Card) -> Shared:
        """What the card's family knows; traced for the first card of it."""
        if card.compute_capability not in self._shared:
            self._add_family(card)
        return self._shared[card.compute_capability]

    def _add_family(self, card: Card) -> None:
        rivals = [*_by_capability([*self._cards.values()])]
        capacity = max(other.capacity_bytes for other in self._cards.values())
        family, choices = self._tracer.prepare(card, self._share - 1, capacity)
        if not self._shared:
            gc.freeze()  # torch has a million objects, which every collection would go through
            gc.set_threshold(_BLOCKS_BEFORE_A_COLLECTION)
        heap = self._device.allocator.heap
        shared = Shared(self._tracer, family, heap.settings, heap.rules)
        own = choices[rivals.index(card.compute_capability)]
        for capability, chosen in zip(rivals, choices, strict=True):
            if chosen == own:
                self._shared.setdefault(capability, shared)
