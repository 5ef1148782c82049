"""Time optimizer steps with the GPU's own clock. Runs in the worker; a null GPU runs nothing, and has no true time."""

from __future__ import annotations

import traceback
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch

from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.oom.classifier import classify
from oomdoctor.results import Outcome
from oomdoctor.search.throughput import TIMED_STEPS, WARM_STEPS
from oomdoctor.target.contract import make_one_batch
from oomdoctor.target.placement import place
from oomdoctor.trial.device import begin_trial
from oomdoctor.trial.step import loss_of
from oomdoctor.trial.trial import release_memory, set_memory_limit
from oomdoctor.trial.variants import gradient_scaler, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.trial.protocol import TimeStep
    from oomdoctor.trial.step import TrialSetup


def time_step(setup: TrialSetup, question: TimeStep) -> float | None:
    """Return the seconds of one whole optimizer step, and leave memory as it was.

    Batches are made before the clock runs, as a loader makes them beside the training; they go to the device within it.

    Args:
        setup: The model and how it trains.
        question: The micro-batches of the step, and the memory that is allowed.

    Returns:
        The seconds; None where memory runs out.

    Raises:
        Exception: What else the user's code raises.
    """
    begin_trial()
    set_memory_limit(question.allowed_bytes)
    batches = {size: setup.changes.batch(make_one_batch(setup.target, size)) for size in {*question.micro_batches}}
    try:
        return _seconds(setup, batches, question.micro_batches)
    except Exception as error:
        if classify(error).outcome is not Outcome.OOM:
            raise
        for link in walk_chain(error):
            traceback.clear_frames(link.__traceback__)
        return None
    finally:
        setup.changes.end()
        release_memory(setup.model)


def _seconds(setup: TrialSetup, batches: Mapping[int, object], sizes: Sequence[int]) -> float:
    optimizer = setup.changes.optimizer(make_optimizer(setup.target, setup.model, setup.variant.optimizer))
    scaler = gradient_scaler(setup.variant)
    marks = []
    for step in range(WARM_STEPS + TIMED_STEPS + 1):
        if step >= WARM_STEPS:
            marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            marks[-1].record()
        if step < WARM_STEPS + TIMED_STEPS:
            _accumulate(setup, scaler, batches, sizes)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    milliseconds: float = median(first.elapsed_time(second) for first, second in pairwise(marks))
    return milliseconds / 1000


def _accumulate(
    setup: TrialSetup, scaler: torch.amp.GradScaler, batches: Mapping[int, object], sizes: Sequence[int]
) -> None:
    samples = sum(sizes)
    for size in sizes:
        loss = loss_of(setup, place(batches[size], setup.device))
        scaler.scale(loss * (size / samples)).backward()  # type: ignore[no-untyped-call]
