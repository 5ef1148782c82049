"""Where a target's model is while it trains: whole on one device, or replicated over several by `nn.DataParallel`.

A rank of a world places its part in another way, in `oomdoctor.trial.lone_rank`. Runs in the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from oomdoctor.errors import NoAnswerError
from oomdoctor.oom.classifier import classify
from oomdoctor.results import DevicePeak, Outcome


@dataclass(slots=True)
class Placement:
    """A whole model on one device.

    Attributes:
        how: How the model is divided over devices, in words; empty where it is not.
        is_whole: Whether another model can be placed in the same way.
    """

    how: str = ""
    is_whole: ClassVar[bool] = True

    @property
    def told(self) -> dict[str, str]:
        """Reasons that results give for how the model was made and placed, by subject; none for a plain one."""
        return {"parallelize": self.how} if self.how else {}

    @property
    def builds_on_meta(self) -> bool:
        """Whether the model is built without memory."""
        return False

    @property
    def outlives_failures(self) -> bool:
        """Whether another trial can follow one that failed."""
        return True

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model as it trains, on the device; a quantised one that is there already is left as it is.

        Raises:
            torch.OutOfMemoryError: It does not fit.
        """
        try:
            model.to(device)
        except Exception as error:
            tensors = (*model.parameters(), *model.buffers())
            is_there = all(tensor.device.type == device.type for tensor in tensors)
            if classify(error).outcome is Outcome.OOM or not is_there:
                raise
        return model

    def leave(self, model: nn.Module) -> None:
        """Take a model that does not fit off the device."""
        model.to("cpu")

    def begin_trial(self, allowed_bytes: int) -> None:
        """Prepare what belongs to one trial; nothing here."""

    def end_trial(self) -> None:
        """Let go of what belongs to one trial; nothing here."""

    def device_peaks(self) -> tuple[DevicePeak, ...]:
        """Return the peaks of each device, where there are several; nothing here."""
        return ()


@dataclass(slots=True)
class Replicas(Placement):
    """A model on the first of several devices, which `nn.DataParallel` copies to the others in each forward."""

    is_whole: ClassVar[bool] = False

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model within `nn.DataParallel`, unless the file itself has put it there."""
        count = torch.cuda.device_count()
        if count < 2:  # noqa: PLR2004 - nothing to divide over
            raise NoAnswerError("torch sees one device", hint="name a card with `--gpu`, of which there are several")
        self.how = f"`nn.DataParallel` over {count} devices"
        if isinstance(model, nn.DataParallel):
            self.how += ", the file's own"
            return model.to(device)
        return nn.DataParallel(model.to(device))

    def begin_trial(self, allowed_bytes: int) -> None:
        """Hold each other device to what the first may take, and measure its peak from now."""
        for index in range(1, torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, (allowed_bytes + 0.5) / total), index)
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)

    def device_peaks(self) -> tuple[DevicePeak, ...]:
        """Return the peaks of the devices besides the first, which the trial itself measures by phase."""
        return tuple(
            DevicePeak(index, torch.cuda.max_memory_allocated(index), torch.cuda.max_memory_reserved(index))
            for index in range(1, torch.cuda.device_count())
        )
