"""Remedies on the device: how its memory is shared, cut up and capped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.vocabulary import vocabulary
from oomdoctor.results import CauseId, Remedy

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation

_CUDA_LIKE: Final = ("cuda", "hip")
_OLD_TEMPLATE: Final = "total capacity;"  # up to torch 2.0, which has no expandable segments


def stop_other_process(situation: Situation) -> Remedy:
    """Give back what other processes hold."""
    listed = situation.others
    if listed:
        pids = " ".join(str(process.pid) for process in listed[:8])
        how = f"ps -fp {pids.replace(' ', ',')}  # then: kill {pids}"
        frees = situation.others_bytes
    else:
        how = f"{vocabulary(situation.device).status}  # then stop what should not run there"
        frees = situation.outside_bytes or 0
    return Remedy(
        id="stop_other_process",
        change="Stop the other processes on this device, or wait for them",
        how=how,
        frees_bytes=frees or None,
        cost="their work is lost; in a container the process ids are the host's",
    )


def other_device(situation: Situation) -> Remedy | None:
    """Go where there is room."""
    variable = vocabulary(situation.device).visible
    if variable is None:
        return None
    index = situation.facts.gpu_index or 0
    return Remedy(
        id="other_device",
        change="Run on another device that is free",
        how=f"{variable}={1 if index == 0 else 0}",
        frees_bytes=None,
        cost="none, where there is one",
    )


def raise_cap(situation: Situation) -> Remedy:
    """Allow the process more."""
    return Remedy(
        id="raise_cap",
        change="Raise the cap on this process's memory",
        how="torch.cuda.set_per_process_memory_fraction(1.0)",
        frees_bytes=situation.facts.free_bytes,
        cost="other programs on the device may run out instead",
    )


def expandable_segments(situation: Situation) -> Remedy | None:
    """Let segments grow in place, so that no holes remain between them."""
    settings = situation.case.allocator_settings or ""
    if situation.device not in _CUDA_LIKE or "expandable_segments:True" in settings:
        return None
    if _OLD_TEMPLATE in situation.message:
        return Remedy(
            id="max_split_size",
            change="Keep large blocks whole, or upgrade to torch 2.1 or newer for `expandable_segments:True`",
            how="PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512",
            frees_bytes=situation.facts.reserved_unallocated_bytes,
            cost="large free blocks are used only for requests of nearly their size, so it can cost memory instead",
        )
    return Remedy(
        id="expandable_segments",
        change="Let the allocator's segments grow in place instead of adding new ones",
        how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        frees_bytes=situation.facts.reserved_unallocated_bytes,
        cost="tensors cannot be shared with other processes over CUDA IPC; no effect on Windows",
    )


def largest_batch_first(situation: Situation) -> Remedy:
    """Cut the segments for the largest shapes before the small ones."""
    return Remedy(
        id="largest_batch_first",
        change="Run the longest or largest batch first, so that later ones fit into its blocks",
        how=None,
        frees_bytes=situation.facts.reserved_unallocated_bytes,
        cost="one batch out of order",
    )


def mps_watermark(situation: Situation) -> Remedy | None:
    """Let MPS use more than its watermark."""
    if situation.device != "mps" or situation.facts.mps_max_bytes is None:
        return None
    return Remedy(
        id="mps_watermark",
        change="Lift the limit that PyTorch sets itself on Apple GPUs",
        how="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        frees_bytes=None,
        cost="the whole system may begin to swap or freeze",
    )


RULES: Final = {
    CauseId.OTHER_PROCESS: (stop_other_process, other_device),
    CauseId.MEMORY_FRACTION_CAP: (raise_cap,),
    CauseId.FRAGMENTATION: (expandable_segments, largest_batch_first),
}
"""Remedies by the cause that they are for."""
