"""What the same thing is called on each kind of device, so that no one is sent to a tool that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
