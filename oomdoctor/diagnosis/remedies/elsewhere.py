"""Remedies off the device: host memory, shared memory, size limits, budgets, and errors that are none of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results import CauseId, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.diagnosis.situation import Situation


def fewer_workers(_situation: Situation) -> Remedy:
    """Each worker holds a copy of what it touches."""
    return Remedy(
        id="fewer_workers",
        change="Use fewer data loader workers, and keep the data set in arrays or files instead of Python objects",
        how="DataLoader(dataset, num_workers=2)",
        frees_bytes=None,
        cost="loading may become the slowest part",
    )


def larger_page_file(situation: Situation) -> Remedy | None:
    """Windows must be able to back every byte that is asked for."""
    if "1455" not in situation.message:
        return None
    return Remedy(
        id="larger_page_file",
        change="Make Windows' paging file larger, or let Windows manage its size",
        how="SystemPropertiesPerformance.exe  # Advanced, Virtual memory",
        frees_bytes=None,
        cost="disk space",
    )


def more_host_memory(_situation: Situation) -> Remedy:
    """Raise the limit that was hit."""
    return Remedy(
        id="more_host_memory",
        change="Give the job more host memory",
        how="sbatch --mem=64G  # docker run --memory=64g; Kubernetes: resources.limits.memory",
        frees_bytes=None,
        cost="a larger machine or allocation",
    )


def no_pinned_memory(situation: Situation) -> Remedy | None:
    """Pinned memory is scarce where the driver limits it."""
    if situation.device == "cpu":
        return None
    return Remedy(
        id="no_pinned_memory",
        change="Do not pin host memory (on WSL the driver allows little of it)",
        how="DataLoader(dataset, pin_memory=False)",
        frees_bytes=None,
        cost="slower copies to the device",
    )


def larger_shared_memory(_situation: Situation) -> Remedy:
    """Raise `/dev/shm`."""
    return Remedy(
        id="larger_shared_memory",
        change="Give the container more shared memory",
        how="docker run --shm-size=8g  # or: --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm",
        frees_bytes=None,
        cost="host memory, as far as it is used",
    )


def no_workers(_situation: Situation) -> Remedy:
    """Without workers nothing is shared."""
    return Remedy(
        id="no_workers",
        change="Load in the training process, or share through files",
        how="DataLoader(dataset, num_workers=0)  # or: torch.multiprocessing.set_sharing_strategy('file_system')",
        frees_bytes=None,
        cost="loading no longer runs beside training",
    )


def smaller_tensors(_situation: Situation) -> Remedy:
    """Stay below the limit."""
    return Remedy(
        id="smaller_tensors",
        change="Keep every tensor below 2**31 elements: a smaller micro-batch with accumulation, or chunks",
        how="outputs = torch.cat([model(part) for part in batch.split(8)])",
        frees_bytes=None,
        cost="more, smaller kernels",
    )


def room_for_cache(_situation: Situation) -> Remedy:
    """Let the server take more, or need less."""
    return Remedy(
        id="room_for_cache",
        change="Let vLLM use more of the device, or shorten the context that it must hold",
        how="--gpu-memory-utilization 0.95 --max-model-len 4096",
        frees_bytes=None,
        cost="less room for others; shorter requests",
    )


_BY_KIND: Final = {
    "kernel-resources": (
        "smaller_kernel_blocks",
        "Use smaller blocks or fewer stages in the kernel: its on-chip memory is limited, whatever the batch",
        "num_stages=1, BLOCK_M=64",
    ),
    "disk-full": (
        "free_disk",
        "Free space on the file system that is full, or write elsewhere",
        "df -h . /tmp /dev/shm",
    ),
    "device-assert": (
        "find_assert",
        "Run once with synchronous launches to see the line; labels and indices out of range are behind most of these",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    "illegal-address": (
        "find_illegal_access",
        "Find the kernel that reached outside its memory",
        "compute-sanitizer python train.py",
    ),
}


def for_other_error(situation: Situation) -> Remedy | None:
    """What helps with an error that is none of memory, where that is known."""
    if situation.kind not in _BY_KIND:
        return None
    name, change, how = _BY_KIND[situation.kind]
    return Remedy(id=name, change=change, how=how, frees_bytes=None, cost="none")


RULES: Final[dict[CauseId, tuple[Callable[[Situation], Remedy | None], ...]]] = {
    CauseId.HOST_OOM: (no_pinned_memory, larger_page_file, fewer_workers, more_host_memory),
    CauseId.SHM: (larger_shared_memory, no_workers),
    CauseId.SIZE_LIMIT: (smaller_tensors,),
    CauseId.KV_CACHE_NO_ROOM: (room_for_cache,),
    CauseId.NOT_OOM: (for_other_error,),
}
"""Remedies by the cause that they are for."""
