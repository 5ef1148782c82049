"""What stands in for a GPU in this process: a null GPU, an emulated device, or nothing. Runs in the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from oomdoctor.devices.null_gpu import control

if TYPE_CHECKING:
    from oomdoctor.tracing.device import EmulatedDevice


@dataclass(slots=True)
class _Emulation:
    """The emulated device of this process, once there is one."""

    device: EmulatedDevice | None = None


_EMULATION = _Emulation()


def is_emulated_by(device: EmulatedDevice) -> None:
    """From now on this process has an emulated device."""
    _EMULATION.device = device


def emulated() -> EmulatedDevice:
    """The emulated device of this process.

    Raises:
        RuntimeError: It has none.
    """
    if _EMULATION.device is None:
        raise RuntimeError("nothing is emulated in this process")
    return _EMULATION.device


def kind() -> Literal["cuda", "null", "trace"]:
    """What the process runs on."""
    if _EMULATION.device is not None:
        return "trace"
    return "null" if control.is_null_gpu() else "cuda"


def reads() -> int:
    """How often data was read back from what stands in for a GPU, each time zeros; 0 on a GPU."""
    return control.reads() if _EMULATION.device is None else _EMULATION.device.reads


def unknown_calls() -> tuple[str, ...]:
    """What was asked of a null GPU that it does not serve."""
    return control.unknown_calls() if kind() == "null" else ()
