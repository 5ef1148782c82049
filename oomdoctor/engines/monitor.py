"""The GPUs of this machine and the processes that hold their memory, without torch and without a CUDA context.

NVML is read first; where it is missing, nvidia-smi is. Indices are nvidia-smi's, in the order of the PCI bus. CUDA
may hide GPUs and order them otherwise, so that only a UUID names the same GPU to both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.engines.local_gpus import GpuReading, LocalGpu, SourceError, read_nvidia_smi, read_nvml
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_SOURCES: Final = (("NVML", read_nvml), ("nvidia-smi", read_nvidia_smi))
_NO_GPU_HINT: Final = (
    "no GPU is needed to ask about one: `oomdoctor probe model.py --gpu rtx-4090` runs on a null GPU,\n"
    "and `oomdoctor gpus --known` lists the cards that `--gpu` knows"
)
_SHELL_NOTE: Final = (
    "the deprecated distribution `pynvml` is installed, which makes every `import torch` warn: run "
    "`pip uninstall pynvml`, then `pip install --force-reinstall nvidia-ml-py`, which has the module"
)

_TOLERANCE_BYTES: Final = 2 * 1024**2
"""One page of the driver: less than this cannot change what an allocation finds."""


def read_gpus() -> GpuReading:
    """Read every GPU of this machine.

    Raises:
        NoAnswerError: No source has any; `details` says why each failed.
    """
    problems: list[str] = []
    for name, read in _SOURCES:
        try:
            gpus = read()
        except SourceError as error:
            problems.append(f"{name}: {error}")
            continue
        if gpus:
            return GpuReading(gpus, notes=(*problems, *_installation_notes()))
        problems.append(f"{name}: it answers, and lists no GPU")
    raise NoAnswerError("no NVIDIA GPU can be read on this machine", details="\n".join(problems), hint=_NO_GPU_HINT)


def has_local_gpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this machine has a GPU that CUDA_VISIBLE_DEVICES does not hide and that is not lost."""
    try:
        gpus = read_gpus().gpus
    except NoAnswerError:
        return False
    visible = cuda_devices(gpus, environment)
    return any(gpu.error is None for gpu in (gpus if visible is None else visible))


def cuda_devices(gpus: Sequence[LocalGpu], environment: Mapping[str, str]) -> tuple[LocalGpu, ...] | None:
    """Return the GPUs that a CUDA process in `environment` sees, in CUDA's order.

    Returns:
        None where only CUDA knows: MIG instances are named, or GPUs of several models are ordered with the fastest
        first, as CUDA does unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    if visible is None:
        return tuple(gpus) if in_bus_order else None
    chosen: list[LocalGpu] = []
    for entry in visible.split(","):
        text = entry.strip()
        if text.startswith("MIG-") or (text.isdecimal() and not in_bus_order):
            return None
        gpu = _visible_gpu(gpus, text)
        if gpu is None:
            break  # CUDA ignores a wrong entry and all that follow it
        if gpu in chosen:
            return ()  # and shows none where one is named twice
        chosen.append(gpu)
    return tuple(chosen)


def cuda_device(gpus: Sequence[LocalGpu], device: int | str, environment: Mapping[str, str]) -> LocalGpu | None:
    """Return the GPU that CUDA calls `device` in `environment`: an index, or a UUID with or without `GPU-`.

    Returns:
        None where there is no such GPU, or where only CUDA knows the index.
    """
    if isinstance(device, str) and not device.isdecimal():
        wanted = _bare_uuid(device)
        return next((gpu for gpu in gpus if gpu.uuid and _bare_uuid(gpu.uuid) == wanted), None)
    index = int(device)
    visible = cuda_devices(gpus, environment) or ()
    return visible[index] if 0 <= index < len(visible) else None


def other_process_bytes(
    device: int | str, *, own_pids: Collection[int] = (), environment: Mapping[str, str] = os.environ
) -> int | None:
    """Return the memory of a GPU that other processes hold, including those that the driver does not list.

    In a container the driver lists the host's process ids, or none, so own memory cannot be distinguished: call it
    there while no own process holds memory.

    Args:
        device: CUDA's index in `environment`, or a UUID with or without `GPU-`.
        own_pids: Own processes, with their descendants.
        environment: Environment variables of the CUDA process.

    Returns:
        None where it is unknown: no such GPU, no reading, or a driver that does not report the processes.
    """
    try:
        gpu = cuda_device(read_gpus().gpus, device, environment)
    except NoAnswerError:
        return None
    return None if gpu is None else held_by_others(gpu, own_pids)


class OtherProcesses:
    """Other processes' memory on the probed GPU, read while no process of ours is on it: before and after.

    Args:
        device: Index or UUID of the local GPU; None where the device is not shared (a null GPU).

    Attributes:
        before_bytes: What they held when the probe began; None where nobody can say.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self.before_bytes = self._read()

    def moved(self) -> bool | None:
        """Return whether they hold more or less than before; None where that cannot be read."""
        if self._device is None:
            return False
        now = self._read()
        if now is None or self.before_bytes is None:
            return None
        return abs(now - self.before_bytes) > _TOLERANCE_BYTES

    def _read(self) -> int | None:
        return None if self._device is None else other_process_bytes(self._device)


def held_by_others(gpu: LocalGpu, own_pids: Collection[int] = ()) -> int | None:
    """Return the memory of `gpu` that is not held by `own_pids` or their descendants; None where it is unknown."""
    if gpu.processes is None:
        return None if own_pids else gpu.used_bytes
    own: list[int | None] = []
    others: list[int | None] = []
    for process in gpu.processes:
        (own if _descends_from(process.pid, own_pids) else others).append(process.used_bytes)
    own_bytes, others_bytes = _total(own), _total(others)
    if gpu.used_bytes is None or gpu.reserved_bytes is None or own_bytes is None:
        return others_bytes  # the memory in use may include the driver's reserve
    return max(0, gpu.used_bytes - own_bytes)


def _total(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _descends_from(pid: int, ancestors: Collection[int]) -> bool:
    """Return whether `pid` is one of `ancestors` or their descendant, as far as Linux shows parents."""
    while pid > 1 and pid not in ancestors:
        try:
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        # The name stands in parentheses and may hold anything, closing parentheses included.
        pid = int(status.rpartition(")")[2].split()[1])
    return pid in ancestors


def _visible_gpu(gpus: Sequence[LocalGpu], text: str) -> LocalGpu | None:
    """Return the GPU of one entry of CUDA_VISIBLE_DEVICES: an index, or the unique start of a UUID."""
    if text.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(text)), None)
    if not text.startswith("GPU-"):
        return None
    matching = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(text)]
    return matching[0] if len(matching) == 1 else None


def _bare_uuid(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _installation_notes() -> tuple[str, ...]:
    from importlib import metadata  # noqa: PLC0415 - takes as long as all the rest, and is needed where there is a GPU

    try:
        metadata.distribution("pynvml")
    except metadata.PackageNotFoundError:
        return ()
    return (_SHELL_NOTE,)
