"""Messages about the accumulation of gradients, which the agent records for `oomdoctor verify`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, Literal

EventKind = Literal["backward", "zero_grad", "clip", "scheduler", "average"]


@dataclass(frozen=True)
class AccumulationEvent:
    """Something that a script did on the way to an optimizer step.

    Attributes:
        kind: `backward`, `zero_grad`, `clip`, `scheduler`, or `average` (of weights).
        place: The user's line, as `file:line`; empty where there is none.
        rows: Of a backward: a number for each sample that the model was called with; the same samples have the same.
        shape: Of a backward: shape of the first tensor that the model was called with; of several calls, joined.
        sizes: Of a backward: samples of each of these calls.
        is_lost: Of a backward: whether the gradients of those before it in the window were gone.
        has_moved: Of a backward: whether the weights were other ones than at the window's first.
        accumulated: Of a backward: sketch of the gradients after it.
    """

    kind: EventKind
    place: str
    rows: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    is_lost: bool = False
    has_moved: bool = False
    accumulated: str = ""


@dataclass(frozen=True)
class AccumulationWindow:
    """An optimizer step, and what was done since the one before.

    Attributes:
        optimizer: Which optimizer stepped, by the order in which they were made; None at the end of the program.
        place: The user's line of the step.
        events: Events since the step before, in order.
        gradient: Sketch of the gradient that it stepped with; the agent lets PyTorch's clipping change nothing.
        norm: Norm of that gradient; None where it is not finite.
        weights: Sketch of the weights at the first backward.
        rates: Learning rates.
        schedule: Whole numbers of the schedules, such as their lengths, by name.
        orders: Indices of the samples that data loaders took, a list for each time through.
        is_cut: Whether a data loader has come to its end.
        is_even: Whether the program's own epochs have whole windows only; they are cut so that the last is partial.
        batch_norms: Paths of batch norms in training mode.
        has_dropout: Whether dropout would have drawn.
        has_drawn: Whether a forward drew other random numbers.
        has_hooks: Whether parameters have hooks, which may change each micro-batch's gradient.
        is_half: Whether weights are in half precision.
        pid: The process.
    """

    event: ClassVar[str] = "window"
    optimizer: int | None
    place: str
    events: tuple[AccumulationEvent, ...]
    gradient: str
    norm: float | None
    weights: str
    rates: tuple[float, ...]
    schedule: dict[str, int]
    orders: tuple[tuple[int, ...], ...]
    is_cut: bool
    is_even: bool
    batch_norms: tuple[str, ...]
    has_dropout: bool
    has_drawn: bool
    has_hooks: bool
    is_half: bool
    pid: int = field(default_factory=os.getpid)
