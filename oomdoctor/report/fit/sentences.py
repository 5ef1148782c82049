"""Sentences of a table of cards that every format shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import count
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import FitResult, FittedCard

COLUMNS: Final = ("--gpu", "memory", "largest", "recommended", "steps", "limited by")
"""Headings of the table."""
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


def headline(result: FitResult) -> str:
    """Return on how many of the cards the target fits."""
    fitting = sum(card.micro_batch.maximum > 0 for card in result.cards)
    return f"{result.target} fits {fitting} of {count(len(result.cards), 'card')}"


def row(card: FittedCard) -> tuple[str, ...]:
    """Return a card's cells, one for each of `COLUMNS`."""
    sizes, plan = card.micro_batch, card.accumulation
    return (
        card.gpu,
        format_size(card.total_bytes),
        _size(sizes.maximum),
        _size(sizes.recommended),
        "-" if plan is None else str(plan.steps),
        limit(card),
    )


def limit(card: FittedCard) -> str:
    """Return what keeps a card's micro-batch from being larger."""
    return _LIMITS[card.micro_batch.limited_by]


def answer(card: FittedCard) -> str:
    """Return a card's answer in one sentence."""
    sizes, plan = card.micro_batch, card.accumulation
    if not sizes.maximum:
        why = "the model alone does not fit" if sizes.limited_by == "model" else "not even the smallest size"
        return f"nothing fits {card.gpu}: {why}"
    steps = "" if plan is None else f", {plan.steps} accumulation step{'' if plan.steps == 1 else 's'}"
    return f"micro-batch {sizes.maximum} is the largest that fits {card.gpu}, {sizes.recommended} is recommended{steps}"


def legend(result: FitResult) -> Iterator[str]:
    """Yield what the columns say, and where the answers were had from."""
    devices = "" if result.world_size == 1 else f" on {result.world_size} devices"
    asked = f"{result.target}, {result.precision}, a target batch of {result.target_batch}{devices}"
    yield f"{asked}; {len(result.cards)} cards, {format_size(result.weights_bytes)} of weights"
    yield f"largest: the largest micro-batch; recommended: one that leaves {result.headroom:.0%} of the capacity free"
    yield "steps: accumulation steps that reach the target batch"
    yield _HOW[result.engine]
    yield from (f"{reason.subject}: {reason.text}" for reason in result.reasons)


def warnings(result: FitResult) -> Iterator[str]:
    """Yield what to know before relying on an answer."""
    if result.questions:
        asked = ", ".join(f"`{question}`" for question in result.questions)
        told = f"the target asks about its GPU ({asked}), and was answered for one card"
        yield f"note: {told}; `probe --gpu` asks for each"
    yield from (f"{card.gpu}: {note}" for card in result.cards for note in card.notes)


def _size(micro_batch: int) -> str:
    return str(micro_batch) if micro_batch else "-"
