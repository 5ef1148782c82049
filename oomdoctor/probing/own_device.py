"""The GPU that this process sees: what it is, and what PyTorch may take of it and holds. Runs in the worker."""

from __future__ import annotations

import torch

from oomdoctor.devices.card import Card
from oomdoctor.devices.catalogue import all_cards
from oomdoctor.errors import NoAnswerError
from oomdoctor.targets.tracebacks import summary

_LEAST_SHARED_MEMORY_BYTES = 48 << 10
"""What every card has."""
_SOURCE = "read from this GPU"


def own_device() -> torch.device:
    """The one GPU that torch sees here.

    Raises:
        NoAnswerError: There is none, or it cannot be used.
    """
    try:
        available = torch.cuda.is_available()
        if available:
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


def capacity_bytes(cap_bytes: int | None) -> int:
    """Bytes that PyTorch may take in all: what is free and what it holds, under the cap where there is one."""
    available = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    return available if cap_bytes is None else min(cap_bytes, available)


def held() -> dict[str, int]:
    """What PyTorch holds between trials; each has to start from the same."""
    return {"allocated_bytes": torch.cuda.memory_allocated(), "reserved_bytes": torch.cuda.memory_reserved()}


def own_card(device: torch.device) -> Card:
    """The GPU as what decides memory; what is in use of it counts as its context, other processes included."""
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
    """What a block can have; PyTorch 2.6 does not tell, and then it is what cards of this generation have."""
    told: int | None = getattr(properties, "shared_memory_per_block_optin", None)
    if told is not None:
        return told
    capability = torch.cuda.get_device_capability()
    alike = (card.shared_memory_per_block_bytes for card in all_cards() if card.compute_capability == capability)
    return next(alike, _LEAST_SHARED_MEMORY_BYTES)
