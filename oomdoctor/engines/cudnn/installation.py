"""The installed cuDNN, the card that it is asked about, and the environment variables that carry both."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.engines.torch_build import wheel_version

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.torch_build import TorchBuild

DRIVER_SOURCE: Final = Path(__file__).with_name("driver.c")
DRIVER: Final = "driver-without-device.so"
DRIVER_NAME: Final = "libcuda.so.1"
"""Name inside the file `DRIVER`, by which cuDNN finds it once it is loaded."""

COMMAND: Final = "OOMDOCTOR_NULL_CUDNN_COMMAND"
ANSWERS: Final = "OOMDOCTOR_NULL_CUDNN_ANSWERS"

_FIRST_VERSION: Final = (9, 8, 0)
"""First cuDNN that answers for a device that is described."""

_ASK: Final = Path(__file__).with_name("answers.py")
_LIBRARY: Final = "nvidia/cudnn/lib/libcudnn.so.9"
# cuDNN 9.10 ends the process where it does not find these by name.
_LOADED_BEFORE: Final = ("libcublasLt.so.*", "libnvrtc.so.*")

# Properties that are the same for all cards that are served, or that changed none of the library's answers.
_COMMON: Final = {
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxRegistersPerSM": 65536,
    "maxThreadsPerBlock": 1024,
    "regsPerBlock": 65536,
    "maxBlockSize": [1024, 1024, 64],
    "maxGridSize": [2147483647, 65535, 65535],
    "supportCoopLaunch": 1,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "cudaDeviceId": 0,
    "driverVer": 13020,
    "totalGlobalMem": 24 << 30,
    "smClockRateKHz": 1695000,
    "memClockRateKHz": 9751000,
    "deviceName": "NVIDIA GPU",
}
# CUDA C++ Programming Guide, table of technical specifications per compute capability; 32 for all others.
_BLOCKS_PER_SM: Final = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}


def can_answer(build: TorchBuild) -> bool:
    """Return whether the cuDNN beside a torch answers for a card that is not there."""
    version = wheel_version(build, "cudnn")
    return version is not None and version >= _FIRST_VERSION and (build.root.parent / _LIBRARY).is_file()


def card_properties(card: Card) -> dict[str, Any]:
    """Return what cuDNN is told about a card. Cards of one compute capability differ in little that it looks at."""
    major, minor = card.compute_capability
    return {
        **_COMMON,
        "deviceVer": 100 * major + 10 * minor,
        "multiProcessorCount": card.sm_count,
        "maxSharedMemoryPerBlockOptin": card.shared_memory_per_block_bytes,
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0,  # noqa: PLR2004 - kept by CUDA since 8.0
        "maxCtasPerSM": _BLOCKS_PER_SM.get(card.compute_capability, 32),
        "maxThreadsPerSM": card.max_threads_per_sm,
        "l2CacheSize": card.l2_bytes,
    }


def cudnn_variables(build: TorchBuild, card: Card, driver: Path, cache: Path) -> dict[str, str]:
    """Return the environment in which the null GPU asks the real cuDNN; empty where that cannot answer.

    Args:
        build: The torch beside which it is installed.
        card: The card that it is asked about.
        driver: The compiled `driver.c`.
        cache: Directory for its answers, which are kept by version and card.
    """
    version = wheel_version(build, "cudnn")
    if version is None or not can_answer(build):
        return {}
    properties = card_properties(card)
    wheels = build.root.parent / "nvidia"
    before = [str(path) for pattern in _LOADED_BEFORE for path in sorted(wheels.glob(f"*/lib/{pattern}"))]
    key = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:12]
    answers = cache / "cudnn" / f"{'.'.join(map(str, version))}-{key}"
    settings = {
        "library": str(build.root.parent / _LIBRARY),
        "before": [str(driver), *before],
        "card": properties,
        "answers": str(answers),
    }
    # No site packages: the process starts in a third of the time.
    command = (sys.executable or "python3", "-I", "-S", str(_ASK), json.dumps(settings))
    return {COMMAND: "\n".join(command), ANSWERS: str(answers)}
