"""The worker's device, real, null or emulated: what it is, what PyTorch holds of it, and which failures are its own."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from oomdoctor.agent import null_gpu as agent_null_gpu
from oomdoctor.agent import unknown_reads
from oomdoctor.engines.catalogue import Card, all_cards
from oomdoctor.engines.choice import ALLOCATOR_VARIABLES
from oomdoctor.engines.null_gpu import library as null_gpu
from oomdoctor.errors import MissingNameError, NoAnswerError, OomdoctorError
from oomdoctor.target.contract import summary
from oomdoctor.trial.worker_answers import HeldMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.agent.messages import UnknownRead
    from oomdoctor.engines.trace.device import EmulatedDevice


_LEAST_SHARED_MEMORY_BYTES = 48 << 10
"""Shared memory of a block that every card has."""
_SOURCE = "read from this GPU"


def current_device() -> torch.device:
    """Return the one GPU that torch sees here.

    Raises:
        NoAnswerError: There is none, or it cannot be used.
    """
    try:
        available = torch.cuda.is_available()
        if available:
            with suppress(torch.OutOfMemoryError):  # where not even this fits, the model's own placement says so
                torch.empty(1, device="cuda")  # the first allocation is where PyTorch reads its allocator's settings
            torch.cuda.empty_cache()
    except (RuntimeError, ValueError) as error:
        raise NoAnswerError(
            f"CUDA cannot be used: {summary(error)}",
            hint="`PYTORCH_CUDA_ALLOC_CONF` is where the allocator is set up; unset it and try again",
        ) from None
    if not available:
        raise NoAnswerError(
            f"torch {torch.__version__} sees no CUDA GPU",
            hint="name a card with `--gpu` to ask about it without one; `oomdoctor gpus --known` lists them",
        )
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def capacity_bytes(cap_bytes: int | None, reserve_bytes: int = 0) -> int:
    """Return the bytes that PyTorch may take: what is free and what it holds, under the cap where there is one.

    Args:
        cap_bytes: The cap.
        reserve_bytes: Bytes of it that are kept for others.
    """
    available = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return max(0, (available if cap_bytes is None else min(cap_bytes, available)) - reserve_bytes)


def memory_fraction() -> float:
    """Return the part of the GPU's memory that PyTorch may take, as `set_per_process_memory_fraction` last set it."""
    return float(torch.cuda.get_per_process_memory_fraction(0))


def allocator_variables() -> dict[str, str | None]:
    """Return the variables that PyTorch's allocator reads once, as they are now; None for one that is not set."""
    return {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES}


def held_memory() -> HeldMemory:
    """Return what PyTorch holds between trials; each has to start from the same."""
    return HeldMemory(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def current_card(device: torch.device) -> Card:
    """Return the GPU as a card; memory that is in use counts as its context, other processes included."""
    properties = torch.cuda.get_device_properties(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return Card(
        key="own",
        name=properties.name,
        total_bytes=total_bytes,
        total_source=_SOURCE,
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        max_threads_per_sm=properties.max_threads_per_multi_processor,
        shared_memory_per_block_bytes=_shared_memory_bytes(properties),
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        context_bytes=total_bytes - free_bytes,
        context_source=f"{_SOURCE}, other processes included",
    )


def _shared_memory_bytes(properties: object) -> int:
    """Return a block's shared memory in bytes; PyTorch 2.6 does not tell, and then it is that of a card of its kind."""
    told: int | None = getattr(properties, "shared_memory_per_block_optin", None)
    if told is not None:
        return told
    capability = torch.cuda.get_device_capability()
    alike = (card.shared_memory_per_block_bytes for card in all_cards() if card.compute_capability == capability)
    return next(alike, _LEAST_SHARED_MEMORY_BYTES)


@dataclass(slots=True)
class _Emulation:
    """The emulated device of this process, once there is one."""

    device: EmulatedDevice | None = None


_EMULATION = _Emulation()


def set_emulated_device(device: EmulatedDevice) -> None:
    """Set the emulated device of this process."""
    _EMULATION.device = device


def emulated_device() -> EmulatedDevice:
    """The emulated device of this process.

    Raises:
        RuntimeError: It has none.
    """
    if _EMULATION.device is None:
        raise RuntimeError("nothing is emulated in this process")
    return _EMULATION.device


def device_kind() -> Literal["cuda", "null", "trace"]:
    """Return the kind of device that the process runs on."""
    if _EMULATION.device is not None:
        return "trace"
    return "null" if null_gpu.is_null_gpu() else "cuda"


def zeros_read_count() -> int:
    """Return how often data was read back from a null or emulated GPU, each time zeros; 0 on a real one."""
    reads = null_gpu.reads() if _EMULATION.device is None else _EMULATION.device.reads
    return reads - unknown_reads.harmless_reads()


def workspaces_given_up() -> int:
    """Return how often PyTorch found no room for cuDNN's workspace and went on without; 0 on a real GPU."""
    device = _EMULATION.device
    return null_gpu.workspaces_given_up() if device is None else device.workspaces_given_up


def workspace_retries() -> int:
    """Return how often the allocator gave back its cache for a workspace of cuDNN; 0 on a real GPU."""
    device = _EMULATION.device
    return null_gpu.workspace_retries() if device is None else device.workspace_retries


def workspace_bytes() -> int:
    """Return the bytes of the largest workspace that cuDNN took in this trial; 0 on a real GPU, which does not tell."""
    device = _EMULATION.device
    return null_gpu.workspace_bytes() if device is None else device.workspace_bytes


def begin_trial() -> None:
    """Begin a trial, for which no plan of cuDNN from an earlier one is to be used."""
    device = _EMULATION.device
    if device is None:
        null_gpu.begin_trial()
    else:
        device.begin_trial()


def has_makeshift_plans() -> bool:
    """Return whether the trial ran a plan of cuDNN that an earlier one chose for want of memory; not on a real GPU."""
    return _EMULATION.device is None and null_gpu.has_makeshift_plans()


def unknown_calls() -> tuple[str, ...]:
    """Return the CUDA calls that a null GPU was asked for and does not serve."""
    return null_gpu.unknown_calls() if device_kind() == "null" else ()


def assumptions() -> tuple[str, ...]:
    """Return the memory that a null or emulated GPU counts by a rule, or not at all, by name; nothing on a real one."""
    device = _EMULATION.device
    return agent_null_gpu.assumptions() if device is None else tuple(sorted(device.assumptions))


_REAL_GPU = "probe this target on a machine with a CUDA GPU"
_STAND_IN = {"null": "a null GPU", "trace": "an emulated one"}


def fault_of(error: OomdoctorError, zeros_read: int, reads: Sequence[UnknownRead]) -> OomdoctorError:
    """Return the error as it is, or one that says what the null GPU could not do.

    Args:
        error: What the target's code seems to have done wrong.
        zeros_read: Times that the code read data back from the GPU before, but for its checks.
        reads: The lines that did so, as far as they are known; those of checks too.
    """
    if device_kind() == "cuda" or (device_kind() == "trace" and isinstance(error, NoAnswerError)):
        return error
    details = "\n\n".join(filter(None, (error.message, error.details)))
    if calls := unknown_calls():
        served = ", ".join(f"`{name}`" for name in calls)
        return NoAnswerError(f"the null GPU does not serve {served}", details=details, hint=_REAL_GPU)
    is_understood = error.hint is not None or isinstance(error, NoAnswerError | MissingNameError)
    if (zeros_read or reads) and not is_understood:  # an error whose remedy is known hangs on no value
        where = f" ({unknown_reads.describe_reads(reads)})" if reads else ""
        return NoAnswerError(
            f"the target read data back from the GPU{where} and then failed; "
            f"from {_STAND_IN[device_kind()]} come zeros, whatever was computed",
            details=details,
            hint=f"{_REAL_GPU}, or take decisions on what was computed (`.item()`, `.any()`, masks) out of the step",
        )
    return error
