"""What fits each card of the catalogue: from traces in one worker, or from a probe of each card on a null GPU."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from oomdoctor.codec import decode, encode
from oomdoctor.engines.catalogue import emulated_environment
from oomdoctor.engines.choice import choose_engine
from oomdoctor.results import Accumulation  # noqa: TC001 - read when a document is decoded
from oomdoctor.search.accumulation import per_device_target
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerProcess
from oomdoctor.units import TIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Reason
    from oomdoctor.trial.process import CancelToken


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card's answer.

    Attributes:
        gpu: The card's key.
        maximum: The largest micro-batch; 0 where none fits.
        recommended: The largest that was tried and leaves the headroom free; 0 where none does.
        limited_by: What keeps it from being larger: `memory`, `target` (the whole target fits), `limit` (a limit that
            is not memory), or `model` (the model alone does not fit).
        plan: How to reach the target batch; None where nothing fits.
        notes: What its reader should know.
    """

    gpu: str
    maximum: int
    recommended: int
    limited_by: Literal["memory", "target", "limit", "model"]
    plan: Accumulation | None
    notes: tuple[str, ...]


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
    request: ProbeRequest, cards: Sequence[Card], progress: Progress, *, stop: CancelToken | None = None
) -> FitTable:
    """Find what `probe` with `--engine trace` would find for each of some cards.

    Args:
        request: The question; what it says of a card is passed over.
        cards: The cards.
        progress: Told of each stage.
        stop: Ends it from another thread.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: The step cannot be traced, a crash, or a time limit.
        KeyboardInterrupt: The stop was set.
    """
    per_device_target(request.target_batch, request.world_size)
    reference = parse_reference(request.target, directory=request.directory)
    engine = choose_engine(engine="trace", gpu=cards[0].key, device=None, memory_bytes=None, base=os.environ)
    boundless = replace(cards[0], total_bytes=UNLIMITED_BYTES, context_bytes=0)
    with WorkerProcess(emulated_environment(boundless, engine.environment), stop) as child:
        progress.stage(f"loading {request.target}")
        load = {"op": "load_for_many", "reference": asdict(reference), "cards": [encode(card) for card in cards]}
        loaded = _ask(child, request, "loading the target", load | settings_of(request))
        progress.stage(f"placing a step of it on {len(cards)} cards")
        answers = [*_answers(child, request, cards)]
    return FitTable(
        tuple(decode(CardFit, answer["fitted"], "fitted") for answer in answers),
        loaded["weights_bytes"],
        loaded["versions"],
        tuple(reason for reason in engine.reasons if reason.subject == "allocator"),
        tuple(answers[-1]["questions"]) if answers else (),
    )


def _answers(child: WorkerProcess, request: ProbeRequest, cards: Sequence[Card]) -> Iterator[dict[str, Any]]:
    for card in cards:
        question = {"op": "fit", "gpu": card.key, "headroom": request.headroom, "capacity_bytes": None}
        yield _ask(child, request, f"fitting {card.key}", question)


def settings_of(request: ProbeRequest) -> dict[str, object]:
    """What a worker is told to fit cards by, besides the target and the cards."""
    return {
        "precision": request.precision,
        "optimizer": request.optimizer,
        "target_batch": request.target_batch,
        "world_size": request.world_size,
        "gives_way": False,
    }


def _ask(child: WorkerProcess, request: ProbeRequest, what: str, question: dict[str, Any]) -> dict[str, Any]:
    return child.ask(question, what=what, timeout_seconds=request.trial_timeout_seconds)
