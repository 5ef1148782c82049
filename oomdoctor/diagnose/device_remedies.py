"""Remedies on the device and the host: sharing, fragmentation, caps, host memory, size limits."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.results import CauseId, Remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.diagnose.evidence import Situation
    from oomdoctor.results import MemoryDevice


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one kind of device.

    Attributes:
        status: Command that lists processes and memory.
        visible: Environment variable that chooses the device; None where there is only one.
        torch_name: What torch calls it: `torch.<name>`, and `torch.autocast("<name>")`; ROCm goes by `cuda`.
        allocated: Expression for the bytes in tensors.
    """

    status: str
    visible: str | None
    torch_name: str
    allocated: str


def _vocabulary(status: str, visible: str | None, torch_name: str) -> Vocabulary:
    return Vocabulary(status, visible, torch_name, f"torch.{torch_name}.memory_allocated()")


_CUDA = _vocabulary("nvidia-smi", "CUDA_VISIBLE_DEVICES", "cuda")

_VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {
        "hip": _vocabulary("rocm-smi --showpids", "HIP_VISIBLE_DEVICES", "cuda"),
        "xpu": _vocabulary("xpu-smi ps", "ZE_AFFINITY_MASK", "xpu"),
        "npu": _vocabulary("npu-smi info", "ASCEND_RT_VISIBLE_DEVICES", "npu"),
        "hpu": _vocabulary("hl-smi", "HABANA_VISIBLE_MODULES", "hpu"),
        "mps": Vocabulary("top -o mem", None, "mps", "torch.mps.current_allocated_memory()"),
    }
)


def vocabulary(device: MemoryDevice) -> Vocabulary:
    """The words for a device; CUDA's where it has none of its own."""
    return _VOCABULARIES.get(device, _CUDA)


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
    """Use another device that has free memory."""
    variable = vocabulary(situation.device).visible
    if variable is None:
        return None
    index = situation.facts.gpu_index or 0
    return Remedy(
        id="other_device",
        change="Run on another device that is free",
        how=f"{variable}={1 if index == 0 else 0}",
        frees_bytes=None,
        cost="none, if another device is free",
    )


def raise_cap(situation: Situation) -> Remedy:
    """Allow the process more memory."""
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


DEVICE_RULES: Final = {
    CauseId.OTHER_PROCESS: (stop_other_process, other_device),
    CauseId.MEMORY_FRACTION_CAP: (raise_cap,),
    CauseId.FRAGMENTATION: (expandable_segments, largest_batch_first),
}
"""Remedies by the cause that they are for."""


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


def memory_for_cache(_situation: Situation) -> Remedy:
    """Let the server take more, or need less."""
    return Remedy(
        id="room_for_cache",
        change="Let vLLM use more of the device, or shorten the context that it must hold",
        how="--gpu-memory-utilization 0.95 --max-model-len 4096",
        frees_bytes=None,
        cost="less memory for other programs; shorter requests",
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
    """Return the remedy for an error that is not about memory, where one is known."""
    if situation.kind not in _BY_KIND:
        return None
    name, change, how = _BY_KIND[situation.kind]
    return Remedy(id=name, change=change, how=how, frees_bytes=None, cost="none")


HOST_RULES: Final[dict[CauseId, tuple[Callable[[Situation], Remedy | None], ...]]] = {
    CauseId.HOST_OOM: (no_pinned_memory, larger_page_file, fewer_workers, more_host_memory),
    CauseId.SHM: (larger_shared_memory, no_workers),
    CauseId.SIZE_LIMIT: (smaller_tensors,),
    CauseId.KV_CACHE_NO_ROOM: (memory_for_cache,),
    CauseId.NOT_OOM: (for_other_error,),
}
"""Remedies by the cause that they are for."""
