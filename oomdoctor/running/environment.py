"""The environment of a command: the hook in its Pythons, and the device that it shall see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.devices.catalogue import find_card, generic_card
from oomdoctor.devices.choice import choose_engine
from oomdoctor.devices.monitor import has_local_gpu
from oomdoctor.devices.null_gpu.environment import environment as null_gpu_environment
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.running.interpreter import find_interpreter, torch_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.devices.card import Card

HOOK = Path(__file__).with_name("hook")
"""The folder that comes first in PYTHONPATH."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a command shall find as its GPU; with all None, whatever is there.

    Attributes:
        gpu: Name of a catalogue card, which a null GPU plays.
        index: Index or UUID of a GPU of this machine.
        memory_bytes: Memory that PyTorch may take.
    """

    gpu: str | None = None
    index: str | None = None
    memory_bytes: int | None = None


def make_environment(
    command: Sequence[str], base: Mapping[str, str], *, device: Device, directory: Path, max_entries: int
) -> dict[str, str]:
    """Make the environment that a command runs in; only what is asked for differs from `base`.

    Args:
        command: The command, which tells what Python and so what torch will run.
        base: Environment to start from.
        device: The GPU to show it.
        directory: Where the hook writes its reports, absolute.
        max_entries: Events of the memory history to keep; 0 for no history.

    Raises:
        UsageError: The device's options contradict each other, or the card is unknown.
        NoAnswerError: The null GPU cannot be had here, or the command's Python has no torch.
    """
    environment, capped_bytes = _device_environment(command, base, device)
    environment = with_hook(environment)
    environment["OOMDOCTOR_RUN_DIRECTORY"] = str(directory)
    environment["OOMDOCTOR_RUN_MAX_ENTRIES"] = str(max_entries)
    environment["OOMDOCTOR_RUN_MEMORY_BYTES"] = str(capped_bytes)
    return environment


def with_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, with the hook first in the path of every Python that runs in it."""
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{HOOK}:{before}" if before else str(HOOK)}


def _device_environment(command: Sequence[str], base: Mapping[str, str], device: Device) -> tuple[dict[str, str], int]:
    """The environment that shows the device, and the bytes that the hook has to cap a real one at; 0 for no cap."""
    if device.gpu is not None and device.index is not None:
        raise UsageError(
            "`--gpu` and `--device` exclude each other",
            hint="`--gpu NAME` plays a card from the catalogue, `--device INDEX` chooses a GPU of this machine",
        )
    capped_bytes = device.memory_bytes or 0
    if device.index is not None:
        engine = choose_engine(engine="cuda", gpu=None, device=device.index, memory_bytes=None, base=base)
        return engine.environment, capped_bytes
    if device.gpu is None and (device.memory_bytes is None or has_local_gpu()):
        return dict(base), capped_bytes
    return _null_environment(command, base, _played_card(device)), 0


def _null_environment(command: Sequence[str], base: Mapping[str, str], card: Card) -> dict[str, str]:
    if "cudaMallocAsync" in base.get("PYTORCH_CUDA_ALLOC_CONF", "") + base.get("PYTORCH_ALLOC_CONF", ""):
        raise NoAnswerError(
            "the null GPU runs PyTorch's own allocator, and the environment asks for `backend:cudaMallocAsync`",
            hint="unset it in `PYTORCH_CUDA_ALLOC_CONF`, or run on a machine with a CUDA GPU",
        )
    build = torch_of(find_interpreter(command, base), base)
    return null_gpu_environment(card, build, base)


def _played_card(device: Device) -> Card:
    if device.gpu is None:
        return generic_card(device.memory_bytes or 0)
    card = find_card(device.gpu)
    return card if device.memory_bytes is None else replace(card, total_bytes=device.memory_bytes + card.context_bytes)
