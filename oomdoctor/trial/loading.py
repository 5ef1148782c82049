"""Build the target's model and place it on the device, whole or as a rank has it. Runs in the worker.

The host's memory is real where that of a null GPU is not. A model that the host has no room for is built on the meta
device instead: weights are counted as modules get them; where they come to most of what was free, `build_model` runs
again under `torch.device("meta")`, and what it made gets memory of the device alone.
"""

from __future__ import annotations

import functools
import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from oomdoctor.agent.host_memory import free_host_bytes
from oomdoctor.errors import TargetError
from oomdoctor.oom.classifier import classify
from oomdoctor.results import Outcome, PhaseName
from oomdoctor.target.contract import Target, blamed, is_out_of_memory, make_one_batch
from oomdoctor.target.placement import BatchShape, check_batch
from oomdoctor.target.sizes import check_sizes_change
from oomdoctor.trial.device import device_kind
from oomdoctor.trial.lone_rank import give_memory
from oomdoctor.trial.placement import Placement
from oomdoctor.trial.variants import build_model
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.remedies.applied import Changes
    from oomdoctor.trial.meters import WorkerMeter


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


_MOST_OF_FREE: Final = 0.8
"""Part of the free memory that weights may take: batches, libraries and other programs need some."""
HOST_ROOM: Final = "host-room"
"""The name by which results tell that some sizes of a model were built without values."""
_HINT: Final = (
    "this host has no room for the model, which is built on the meta device therefore, where tensors have no values: "
    "compute what `build_model` reads in plain Python, or under `with torch.device('cpu'):`"
)


class _NoRoomError(BaseException):
    """Weights come to more than the host has room for; no `except Exception` of the user's catches it."""


@dataclass(slots=True, kw_only=True)
class WithoutValues(Placement):
    """A model on the meta device, which gets memory of the device and no values.

    Attributes:
        free_bytes: What the host had free.
    """

    free_bytes: int

    @property
    def builds_on_meta(self) -> bool:
        """True: the model is built without memory."""
        return True

    @property
    def told(self) -> dict[str, str]:
        """The reason for the meta device, by the subject under which results have it."""
        free = format_size(self.free_bytes)
        return {"host_memory": f"{free} were free, too little for the weights: the model was built on the meta device"}

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model on the device, with memory and without values.

        Raises:
            torch.OutOfMemoryError: It does not fit.
        """
        give_memory(model, device)
        return model.to(device)

    def leave(self, model: nn.Module) -> None:
        """Take a model that does not fit off the device; it gets no other try."""
        model.to("meta")


def build_where_room_is(target: Target, changes: Changes, placement: Placement) -> tuple[nn.Module, Placement]:
    """Build the model on the host, or without memory where that is asked for or the host has no room.

    Raises:
        TargetError: The user's function raised or returned no module, or reads values that there are none of.
    """
    free_bytes = free_host_bytes()
    if type(placement) is not Placement or device_kind() == "cuda" or free_bytes is None:
        return build_model(target, changes, on_meta=placement.builds_on_meta), placement
    try:
        with _counted_weights(int(_MOST_OF_FREE * free_bytes)):
            return build_model(target, changes, passes=_passes), placement
    except _NoRoomError:
        gc.collect()  # what was built until then
    return build_model(target, changes, on_meta=True, hint=_HINT), WithoutValues(free_bytes=free_bytes)


def _passes(error: BaseException) -> bool:
    return isinstance(error, _NoRoomError) or is_out_of_memory(error)


@contextmanager
def _counted_weights(most_bytes: int) -> Iterator[None]:
    """Raise once the parameters on the host that modules have got inside take more bytes."""
    register: Any = nn.Module.register_parameter
    seen: set[int] = set()
    total = 0

    @functools.wraps(register)
    def counted(module: nn.Module, name: str, parameter: Any) -> None:  # noqa: ANN401 - or None
        nonlocal total
        register(module, name, parameter)
        if parameter is None or parameter.device.type != "cpu" or id(parameter) in seen:
            return
        seen.add(id(parameter))
        total += parameter.nbytes
        if total > most_bytes:
            raise _NoRoomError

    nn.Module.register_parameter = counted  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
