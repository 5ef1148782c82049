"""Build the target's model and place it on the device, whole or as a rank has it. Runs in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from oomdoctor.errors import TargetError
from oomdoctor.oom.classifier import classify
from oomdoctor.results import Outcome, PhaseName
from oomdoctor.target.contract import Target, blamed, make_one_batch
from oomdoctor.target.placement import BatchShape, check_batch
from oomdoctor.target.sizes import check_sizes_change
from oomdoctor.trial.host_room import build_where_room_is

if TYPE_CHECKING:
    from oomdoctor.remedies.applied import Changes
    from oomdoctor.trial.meters import WorkerMeter
    from oomdoctor.trial.placement import Placement


def build_on_host(target: Target, changes: Changes, placement: Placement) -> tuple[torch.nn.Module, Placement]:
    """Build the model where it takes no memory of the device, and return how it is to be placed.

    Raises:
        TargetError: The user's function raised, or returned no module, or ran out of the device's memory itself.
    """
    try:
        return build_where_room_is(target, changes, placement)
    except torch.OutOfMemoryError as error:
        raise TargetError(
            "`build_model` itself ran out of GPU memory",
            hint="let it build the model on the CPU; oomdoctor places it",
            details=str(error),
        ) from None


def check_batches(target: Target) -> BatchShape:
    """Check early that `make_batch` heeds its arguments; an error raised here is left for the trials to report."""
    try:
        few, more = make_one_batch(target, 2), make_one_batch(target, 4)
    except (torch.OutOfMemoryError, TargetError):
        return BatchShape()
    with blamed(target, "the batch of `make_batch(2)`"):
        check_batch(few)
        check_sizes_change(target)
        return BatchShape.of(few, 2, more, 4)


def place_model(
    target: Target, model: torch.nn.Module, device: torch.device, meter: WorkerMeter, placement: Placement
) -> tuple[torch.nn.Module, str | None]:
    """Move the model, and with it the text of the OOM where it does not fit; then it is not on the device."""
    try:
        with meter.phase(0, PhaseName.LOAD), blamed(target, "placing the model", passes=_is_lack_of_memory):
            model = placement.place(model, device)
            model.train()
    except Exception as error:
        if not _is_lack_of_memory(error):
            raise
        text = str(error)
    else:
        return model, None
    placement.leave(model)
    return model, text


def _is_lack_of_memory(error: BaseException) -> bool:
    return classify(error).outcome is Outcome.OOM
