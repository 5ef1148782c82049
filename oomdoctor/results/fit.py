"""The table of cards: the largest micro-batch that fits each, and the plan that reaches the target batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from oomdoctor.codec import ADDED_LATER
from oomdoctor.results.plan import Accumulation
from oomdoctor.results.probe import Reason
from oomdoctor.results.variant import Axis, Precision, Variant

CardLimit: TypeAlias = Literal["memory", "target", "limit", "model", "unknown"]


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card's answer.

    Attributes:
        gpu: The card's key.
        maximum: The largest micro-batch; 0 where none fits.
        recommended: The largest that was tried and leaves the headroom free; 0 where none does.
        limited_by: What keeps it from being larger: `memory`, `target` (the whole target fits), `limit` (a limit that
            is not memory), `model` (the model alone does not fit), or `unknown` (there is no answer at these sizes).
        plan: How to reach the target batch; None where nothing fits, or there is no target.
        notes: What its reader should know.
    """

    gpu: str
    maximum: int
    recommended: int
    limited_by: CardLimit
    plan: Accumulation | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CardMicroBatch:
    """The largest micro-batch of a card, or the largest value of the size that is searched at one micro-batch.

    Attributes:
        maximum: Largest that fits; 0 when none does.
        recommended: Largest that was tried and leaves the headroom free; 0 when none does.
        limited_by: What keeps it from being larger: `memory`, `target` (the whole target fits), `limit` (a limit that
            is not memory), `model` (the model alone does not fit) or `unknown` (no answer at these sizes).
    """

    maximum: int
    recommended: int
    limited_by: CardLimit


@dataclass(frozen=True, slots=True)
class FittedCard:
    """One card's answer, at one combination of sizes.

    Attributes:
        gpu: What `--gpu` calls it.
        name: What PyTorch calls it.
        total_bytes: Its memory.
        capacity_bytes: Bytes that PyTorch may take.
        compute_capability: Such as `8.9`.
        micro_batch: The answer.
        accumulation: How to reach the target batch; None when nothing fits, or there is no target.
        notes: What the reader should know, or why there is no answer.
        at_sizes: The sizes besides the batch that are varied; none where none is.
    """

    gpu: str
    name: str
    total_bytes: int
    capacity_bytes: int
    compute_capability: str
    micro_batch: CardMicroBatch
    accumulation: Accumulation | None
    notes: tuple[str, ...]
    at_sizes: tuple[Axis, ...] = field(default=(), metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class FitResult:
    """The question, and what fits each card.

    Attributes:
        target: The reference to the user's file or example as it was given.
        target_batch: Samples per optimizer step over all devices; None for plain steps.
        world_size: Devices that share the target batch.
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16`.
        optimizer: Name of a `torch.optim` class, as asked for; None for the file's own or the default.
        headroom: Part of the capacity that the recommended size leaves free, between 0 and 1.
        engine: What the answers were had from: `trace`, or a probe of each card on a `null` GPU.
        weights_bytes: Bytes of the model's parameters and buffers; the most where they depend on a size.
        questions: What the target asked about its GPU, and was answered for one card.
        reasons: What decided besides the cards.
        cards: The cards that were asked about, in the order in which they were named, else in the catalogue's; each
            at every combination of sizes, the last axis fastest.
        given_sizes: Sizes besides the batch that hold for all.
        varied_sizes: Names of those that are varied, in the order in which they were given.
        variant: How each trial differs from the target's plain step; None in documents from before it was kept.
    """

    target: str
    target_batch: int | None
    world_size: int
    precision: Precision
    optimizer: str | None
    headroom: float
    engine: Literal["trace", "null"]
    weights_bytes: int
    questions: tuple[str, ...]
    reasons: tuple[Reason, ...]
    cards: tuple[FittedCard, ...]
    given_sizes: tuple[Axis, ...] = field(default=(), metadata=ADDED_LATER)
    varied_sizes: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    variant: Variant | None = field(default=None, metadata=ADDED_LATER)
