"""What is told of a model that one process replicates over several devices: their peaks, and what DDP would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.results import Outcome, Reason
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import ProbeResult
    from oomdoctor.trial.answer import ProbeRun

MOST_DEVICES: Final = 16
"""Devices that a null GPU has at most."""


def check_devices(request: ProbeRequest, kind: str) -> None:
    """See that a question about several devices of one process can be answered.

    Args:
        request: The question.
        kind: The kind of device that was chosen.

    Raises:
        UsageError: It cannot.
    """
    if request.variant.devices > MOST_DEVICES:
        raise UsageError(f"`--devices` is {request.variant.devices}, and a machine has at most {MOST_DEVICES} here")
    if kind != "null":
        chosen = "a GPU of this machine" if kind == "cuda" else "a trace"
        raise UsageError(
            f"several devices of one process are null GPUs only, and {chosen} was chosen",
            hint="name the card with `--gpu`, such as `--gpu t4`; `--engine null` says what is missing",
        )


def with_ddp(request: ProbeRequest) -> ProbeRequest:
    """Return the question what DistributedDataParallel would fit on as many devices, a process on each."""
    count, batch = request.variant.devices, request.target_batch
    return replace(
        request,
        variant=replace(request.variant, devices=1),
        world_size=count,
        parallel="ddp",
        ranks="first",
        target_batch=batch if batch is not None and batch % count == 0 else None,
        profiles=False,
    )


def told_devices(run: ProbeRun, count: int, ddp: ProbeResult | OomdoctorError) -> ProbeRun:
    """Return the answer with each device's peak, and with what DDP fits.

    Args:
        run: The answer.
        count: Number of devices.
        ddp: The answer of the question of `with_ddp`, or why there is none.
    """
    result = run.result
    reasons, warnings = [*result.reasons, *_peaks(result)], list(result.warnings)
    if isinstance(ddp, OomdoctorError):
        reasons.append(Reason("ddp", f"DistributedDataParallel was not run: {ddp.message}"))
    else:
        each, own = ddp.micro_batch.maximum, result.micro_batch.maximum
        fits = f"DistributedDataParallel fits {count * each} on these {count} devices, {each} on each"
        if count * each > own:
            how = "it keeps no gathered outputs on device 0; start a process a device by `torchrun`"
            warnings.append(f"{fits}, where `nn.DataParallel` fits {own}: {how}")
        else:
            reasons.append(Reason("ddp", f"{fits}, and `nn.DataParallel` {own}"))
    return replace(run, result=replace(result, reasons=tuple(reasons), warnings=tuple(warnings)))


def _peaks(result: ProbeResult) -> list[Reason]:
    """Return each device's peak at the maximum, and what device 0 has more."""
    size = result.micro_batch.maximum
    found = [each for each in result.trials if each.micro_batch == size and each.outcome is Outcome.FITS]
    trial = max(found, key=lambda each: each.allowed_bytes, default=None)
    if trial is None or not trial.other_devices:
        return []
    first = trial.peak_allocated_bytes or 0
    rows = [(0, first), *((each.index, each.peak_allocated_bytes) for each in trial.other_devices)]
    peaks = ", ".join(f"device {index} {format_size(peak)}" for index, peak in rows)
    more = first - max(each.peak_allocated_bytes for each in trial.other_devices)
    why = "it alone has the whole batch, the gathered outputs, the gradients' sum and the optimizer's state"
    return [Reason("devices", f"peaks at micro-batch {size}: {peaks}; device 0 has {format_size(more)} more: {why}")]
