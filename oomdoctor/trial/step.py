"""One step of a target: the model and how it runs, a batch of it, and its loss. Runs in the worker."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from oomdoctor.oom.classifier import classify
from oomdoctor.remedies.applied import Changes
from oomdoctor.results import Outcome
from oomdoctor.target.contract import Target, make_one_batch, take_loss
from oomdoctor.target.placement import BatchShape, place
from oomdoctor.trial.placement import Placement
from oomdoctor.trial.variants import autocast, gradient_scaler

if TYPE_CHECKING:
    import torch

    from oomdoctor.results import Variant


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """Setup of all trials of one target.

    Attributes:
        target: The user's functions.
        model: The user's model, on `device`, in training mode.
        device: Where it trains.
        variant: How the step differs from the user's plain one.
        computes: Whether the device does arithmetic, so that a loss means something; the null GPU does not.
        shape: What each batch is checked against.
        places_model: Whether the model is on the CPU still, so that the trial begins with placing it.
        changes: What the variant changes in model, batch, forward and optimizer.
        placement: How the model is on the device, or divided over several.
    """

    target: Target
    model: torch.nn.Module
    device: torch.device
    variant: Variant
    computes: bool
    shape: BatchShape
    places_model: bool = False
    changes: Changes = field(default_factory=Changes)
    placement: Placement = field(default_factory=Placement)

    def end_trial(self) -> None:
        """Let go of what belongs to one trial."""
        self.changes.end()
        self.placement.end_trial()
        _forget_compiled()


def has_compiled() -> bool:
    """Return whether something was compiled, of which a process keeps so many variants and no more."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters.get("frames"))


def _forget_compiled() -> None:
    """Have each size compiled as in a process of its own: PyTorch compiles eight, and runs a ninth without.

    Kernels that Inductor has loaded are let go of too: one that was timed is not timed again.
    """
    if has_compiled():
        sys.modules["torch._dynamo"].reset()
        inductor = sys.modules.get("torch._inductor.utils")
        clear = getattr(inductor, "clear_caches", None) or getattr(inductor, "clear_inductor_caches", None)
        if clear is not None:
            clear()


def train_once(setup: TrialSetup, micro_batch: int) -> None:
    """Take one forward and backward of one micro-batch, without a step of the optimizer."""
    setup.model.zero_grad(set_to_none=True)
    batch = place(checked_batch(setup, micro_batch), setup.device)
    try:
        gradient_scaler(setup.variant).scale(loss_of(setup, batch)).backward()  # type: ignore[no-untyped-call]
    finally:
        setup.end_trial()


def checked_batch(setup: TrialSetup, micro_batch: int, seed: int = 0) -> object:
    """Return a batch of the target, on the CPU.

    Args:
        setup: The target.
        micro_batch: Samples.
        seed: What it draws: another number for each batch of a trial, and the same ones in each trial.

    Raises:
        TargetError: The file made none, or it has not as many samples.
    """
    # What `make_batch` cannot make of a larger size is that size's limit, as what the model cannot take of it is.
    passes = is_about_size if setup.variant.searched is None else is_of_user
    make = partial(make_one_batch, setup.target, seed=seed, passes=passes)
    batch = make(micro_batch)
    setup.shape.check(batch, micro_batch, make)
    return setup.changes.batch(batch)


def is_about_size(error: BaseException) -> bool:
    """Return whether an error of `make_batch` is about the size, and not about the user's code."""
    return classify(error).outcome is not Outcome.FAILED


def is_of_user(error: BaseException) -> bool:
    """Return whether an error may be an outcome of a trial; an interrupt is none."""
    return not isinstance(error, KeyboardInterrupt)


def loss_of(setup: TrialSetup, batch: object) -> torch.Tensor:
    """Return the loss of a batch that is on the device."""
    with setup.changes.forward(), autocast(setup.variant):
        output = setup.target.training_step(setup.model, batch)
    return take_loss(setup.target, output)
