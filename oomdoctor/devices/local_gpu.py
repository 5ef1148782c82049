"""What can be read of a GPU in this machine; whatever cannot be read is None, and never stops the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    Attributes:
        pid: Process id as the driver sees it; in a container that is the host's.
        name: Its executable; None where the driver does not tell.
        used_bytes: Memory that it holds; None where the driver does not tell.
    """

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """One GPU of this machine.

    Attributes:
        index: As nvidia-smi counts, in the order of the PCI bus; CUDA may count otherwise.
        uuid: `GPU-` and 36 characters; the same for CUDA.
        name: As `torch.cuda.get_device_name` prints it.
        total_bytes: Physical memory; CUDA can use somewhat less.
        used_bytes: Memory in use, without what the driver reserves where `reserved_bytes` is known.
        free_bytes: Memory that nobody holds.
        reserved_bytes: Memory that the driver keeps to itself; None where it is counted as used.
        utilisation_percent: Share of the last moments in which a kernel ran.
        processes: Who holds the memory; None where the driver does not tell.
        source: What was asked.
        error: Why the GPU could not be read, such as `GPU is lost`; None where it could.
    """

    index: int
    uuid: str | None
    name: str | None
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    utilisation_percent: int | None
    processes: tuple[GpuProcess, ...] | None
    source: Literal["nvml", "nvidia-smi"]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of this machine, at least one.

    Attributes:
        gpus: In the order of their index.
        notes: What the reader should know: a source that failed, an installation to mend.
    """

    gpus: tuple[LocalGpu, ...]
    notes: tuple[str, ...] = ()


class SourceError(Exception):
    """One source of readings has none; the text says why, and another source may have one."""
