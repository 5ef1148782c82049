"""Fit one target to many cards: a worker traces it, and places its step on an allocator of each card's size."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomdoctor.engines.catalogue import emulated_environment
from oomdoctor.engines.choice import choose_engine
from oomdoctor.search.probe_search import share_of
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.protocol import FitCard, LoadForCards, LoadTarget
from oomdoctor.trial.worker_answers import SettingsChangedError
from oomdoctor.trial.worker_process import WorkerProcess
from oomdoctor.units import TIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Reason
    from oomdoctor.results.fit import CardFit
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.worker_answers import CardFitted, LoadedTarget
    from oomdoctor.trial.worker_process import WorkerStarter


UNLIMITED_BYTES = 4 * TIB
"""Memory of the device that is traced on: more than any card has."""


@dataclass(frozen=True, slots=True)
class FitTable:
    """Every card's answer.

    Attributes:
        rows: By card, in the order in which they were given.
        weights_bytes: Bytes of parameters and buffers.
        versions: Version by name.
        reasons: What decided besides the cards.
        questions: What the target asked about the GPU, which it was told of one card of its kind.
    """

    rows: tuple[CardFit, ...]
    weights_bytes: int
    versions: dict[str, str]
    reasons: tuple[Reason, ...]
    questions: tuple[str, ...]


def fit_cards(
    request: ProbeRequest,
    cards: Sequence[Card],
    progress: Progress,
    *,
    stop: CancelToken | None = None,
    start: WorkerStarter | None = None,
) -> FitTable:
    """Find what `probe` with `--engine trace` would find for each of some cards.

    Args:
        request: The question; what it says of a card is passed over.
        cards: The cards.
        progress: Told of each stage.
        stop: Ends it from another thread.
        start: Starts its worker; None for a fresh interpreter.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        MemoryGrowsError: The target keeps memory, so that each card needs trials of its own.
        NoAnswerError: The step cannot be traced, a crash, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    share_of(request.target_batch, request.world_size)
    reference = parse_reference(request.target, directory=request.directory)
    base = request.environment(os.environ)
    engine = choose_engine(engine="trace", gpu=cards[0].key, device=None, memory_bytes=None, base=base)
    boundless = replace(cards[0], total_bytes=UNLIMITED_BYTES, context_bytes=0, reserve_bytes=0)
    environment = emulated_environment(boundless, engine.environment)
    question = load_for_cards(request, reference, cards)
    try:
        with WorkerProcess(environment, stop, start) as child:
            loaded, answers = _load_and_fit(request, question, child, progress)
    except SettingsChangedError as changed:
        question = replace(question, load=replace(question.load, keeps_settings=True))
        with WorkerProcess(changed.environment(environment), stop, start) as child:
            loaded, answers = _load_and_fit(request, question, child, progress)
    return FitTable(
        tuple(answer.fit for answer in answers),
        loaded.weights_bytes or 0,
        loaded.versions,
        tuple(reason for reason in engine.reasons if reason.subject == "allocator"),
        answers[-1].questions if answers else (),
    )


def load_for_cards(
    request: ProbeRequest, reference: Reference, cards: Sequence[Card], *, is_expendable: bool = False
) -> LoadForCards:
    """Return what a worker is told before it is asked about cards; see `oomdoctor.trial.protocol.LoadForCards`."""
    world = request.world_size
    load = LoadTarget(reference, request.variant, memory_bytes=None, watched=False, world_size=world)
    return LoadForCards(load, tuple(cards), request.target_batch, request.world_size, is_expendable)


def _load_and_fit(
    request: ProbeRequest, question: LoadForCards, child: WorkerProcess, progress: Progress
) -> tuple[LoadedTarget, list[CardFitted]]:
    """Load the target in a worker, and have it answer for each card."""
    seconds = request.trial_timeout_seconds
    progress.stage(f"loading {request.target}")
    loaded = child.ask(question, what="loading the target", timeout_seconds=seconds)
    cards = "1 card" if len(question.cards) == 1 else f"{len(question.cards)} cards"
    progress.stage(f"placing a step of it on {cards}")
    questions = [FitCard(card.key, request.headroom, capacity_bytes=None) for card in question.cards]
    return loaded, [child.ask(one, what=f"fitting {one.gpu}", timeout_seconds=seconds) for one in questions]
