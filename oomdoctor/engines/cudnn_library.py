"""The installed cuDNN: whether it answers for a card that is only described, and how its process is started.

Since 9.8 it does, where it finds every library and every function of a driver that it was linked against. A driver
without a device is compiled for that (`cudnn_driver.c`), and one convolution is asked first: a library that loads only
in part refuses every question, which must not be taken for layers without a workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess  # the compiler, and the library's own process
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.cudnn import ANSWERS, COMMAND, Convolution, TensorLayout, graph_of
from oomdoctor.engines.installed import cache_directory, compile_all, find_compiler, wheel_version
from oomdoctor.engines.shared_library import read_shared_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.installed import TorchBuild

CARD: Final = "OOMDOCTOR_NULL_CUDNN_CARD"
"""Variable with the properties of the null GPU's card, as JSON."""
PROBLEM: Final = "OOMDOCTOR_NULL_CUDNN_PROBLEM"
"""Variable that says why an installed cuDNN is not asked; there is none where it is."""

_FIRST_VERSION: Final = (9, 8, 0)
"""First cuDNN that answers for a device that is described."""
_PROGRAM: Final = Path(__file__).with_name("cudnn_answers.py")
_DRIVER: Final = Path(__file__).with_name("cudnn_driver.c")
_CUBLASLT: Final = Path(__file__).with_name("cudnn_cublaslt.c")
_LIBRARY: Final = "nvidia/cudnn/lib/libcudnn.so.9"
# cuDNN 9.10 ends the process where it does not find these by name.
_LOADED_BEFORE: Final = ("libnvrtc.so.*",)
_REPLACED: Final = "*/lib/libcublasLt.so.*"
"""Found by name as well, but makes no handle without a device; `cudnn_cublaslt.c` takes its place."""
_DRIVER_FUNCTION: Final = re.compile("cu[A-Z]")
# What `cudnn_driver.c` defines itself is stronger.
_HAS_NO_DEVICE: Final = """\
#define HAS_NO_DEVICE(name) __attribute__((weak, visibility("default"))) int name(void) { return 100; }"""

_SQUARE: Final = TensorLayout((8, 16, 8, 8), (1024, 64, 8, 1), 32)
_KERNEL: Final = TensorLayout((16, 16, 3, 3), (144, 9, 3, 1), 32)
_CHECKED: Final = Convolution("forward", "float32", _SQUARE, _KERNEL, _SQUARE, (1, 1), (1, 1), (1, 1))
_CHECKED_ON: Final = "rtx-3060"
_LOGGED: Final = {"CUDNN_LOGLEVEL_DBG": "1", "CUDNN_LOGDEST_DBG": "stderr"}
_REASON: Final = re.compile(r"Error: \w+; Reason: (.*)")
_LONGEST: Final = 120
"""Seconds after which a check has failed; it takes half a second."""


# --- the card --------------------------------------------------------------------------------------------------------

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
    "memoryBusWidth": 384,  # required since cuDNN 9.28
    "deviceName": "NVIDIA",
}


def _sizes(sm_count: int, l2_bytes: int) -> dict[str, int]:
    return {"multiProcessorCount": sm_count, "l2CacheSize": l2_bytes}


# CUDA C++ Programming Guide, table of technical specifications per compute capability; 32 for all others.
_BLOCKS_PER_SM: Final = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
# One card stands for all of its compute capability: on 8.0, 8.6, 8.9 and 9.0 the numbers of others changed none of 144
# answers each. On 7.5 twice the multiprocessors changed 9 of 36, and capabilities since 10.0 have not been compared:
# these have multiprocessors and cache of their own. The width of the bus changed none of 120 answers on any of them.
# Clocks and widths: data sheets of T4, A100, RTX 3060, RTX 4090 and H100 SXM.
_STANDING_FOR_ALL: Final = {
    (7, 5): {"smClockRateKHz": 1590000, "memClockRateKHz": 5001000, "memoryBusWidth": 256},
    (8, 0): _sizes(108, 40 << 20) | {"smClockRateKHz": 1410000, "memClockRateKHz": 1215000, "memoryBusWidth": 5120},
    (8, 6): _sizes(28, 9 << 18) | {"smClockRateKHz": 1777000, "memClockRateKHz": 7501000, "memoryBusWidth": 192},
    (8, 9): _sizes(128, 72 << 20) | {"smClockRateKHz": 2520000, "memClockRateKHz": 10501000},
    (9, 0): _sizes(132, 50 << 20) | {"smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "memoryBusWidth": 5120},
}


@cache
def card_properties(card: Card) -> str:
    """Return what cuDNN is told about a card, as JSON without spaces."""
    major, minor = card.compute_capability
    properties = {
        **_COMMON,
        "deviceVer": 100 * major + 10 * minor,
        "maxSharedMemoryPerBlockOptin": card.shared_memory_per_block_bytes,
        "reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0,  # noqa: PLR2004 - kept by CUDA since 8.0
        "maxCtasPerSM": _BLOCKS_PER_SM.get(card.compute_capability, 32),
        "maxThreadsPerSM": card.max_threads_per_sm,
        **_sizes(card.sm_count, card.l2_bytes),
        **_STANDING_FOR_ALL.get(card.compute_capability, {}),
    }
    return json.dumps(properties, separators=(",", ":"))


# --- the environment -------------------------------------------------------------------------------------------------


def cudnn_variables(build: TorchBuild, base: Mapping[str, str], card: Card | None = None) -> dict[str, str]:
    """Return the environment in which the real cuDNN is asked; without `COMMAND` where it cannot answer.

    It is not asked where `TORCH_CUDNN_V8_API_DISABLED=1` has PyTorch use the older interface, which needs a device.

    Args:
        build: The torch beside which it is installed.
        base: Environment that names the compiler (`CC`) and the cache directory (`XDG_CACHE_HOME`).
        card: The null GPU's card; None for an emulated device, which names its card with each question.

    Raises:
        NoAnswerError: There is no C compiler, or it failed.
        OSError: The cache directory cannot be written.
    """
    version = wheel_version(build, "cudnn")
    library = build.root.parent / _LIBRARY
    if base.get("TORCH_CUDNN_V8_API_DISABLED") == "1":
        return {}
    if version is None or version < _FIRST_VERSION or not library.is_file():
        return {}
    found = _Installed(library, ".".join(map(str, version)))
    try:
        command = found.command(base)
    except _NoAnswersError as error:
        return {PROBLEM: f"cuDNN {found.version} is installed, and answered nothing: {error}"}
    return command | ({} if card is None else {CARD: card_properties(card)})


def cudnn_version(environment: Mapping[str, str]) -> str | None:
    """Return the version of the cuDNN that is asked in an environment; None where none is."""
    return Path(environment[ANSWERS]).name if ANSWERS in environment else None


class _NoAnswersError(Exception):
    """The library refuses every question; the text says what it told."""


@dataclass(frozen=True, slots=True)
class _Installed:
    """A cuDNN that is installed.

    Attributes:
        library: Its main library.
        version: Such as `9.26.0`.
    """

    library: Path
    version: str

    def command(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which it is asked; what decides them is looked at once, and kept."""
        directory = cache_directory(base) / "cudnn"
        kept = directory / f"{self._key()}.json"
        if kept.is_file():
            settings = json.loads(kept.read_text(encoding="utf-8"))
        else:
            settings = self._checked(directory, base)
            _write(kept, json.dumps(settings))
        return _variables(settings)

    def _key(self) -> str:
        sources = _DRIVER.read_text("utf-8"), _CUBLASLT.read_text("utf-8")
        parts = (str(self.library), str(self.library.stat().st_mtime_ns), self.version, *sources)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def _checked(self, directory: Path, base: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of its process after it has answered about one convolution."""
        driver = self._driver(directory, base)
        wheels = self.library.parents[2]
        before = [str(path) for pattern in _LOADED_BEFORE for path in sorted(wheels.glob(f"*/lib/{pattern}"))]
        products = [str(self._products(driver.parent, path, base)) for path in sorted(wheels.glob(_REPLACED))]
        # What it answers is kept beside the driver, since it goes by the driver too.
        settings = {"library": str(self.library), "before": [str(driver), *products, *before]}
        settings["answers"] = str(driver.parent / self.version)
        _check_answers(_variables(settings)[COMMAND].split("\n"))
        return settings

    def _driver(self, directory: Path, base: Mapping[str, str]) -> Path:
        """Return the compiled driver without a device; cuDNN finds it by its name as soon as it is loaded."""
        linked = "\n".join([_HAS_NO_DEVICE, *(f"HAS_NO_DEVICE({name})" for name in self._driver_functions()), ""])
        written = _DRIVER.read_text("utf-8") + _CUBLASLT.read_text("utf-8") + linked
        path = directory / hashlib.sha256(written.encode()).hexdigest()[:12] / "driver.so"
        if not path.is_file():
            _compile(_DRIVER, linked, path, "libcuda.so.1", base)
        return path

    @staticmethod
    def _products(directory: Path, replaced: Path, base: Mapping[str, str]) -> Path:
        """Return the compiled cuBLASLt that stands for an installed one."""
        major = replaced.name.rpartition(".")[2]
        wheels = replaced.parents[3].glob(f"nvidia_cublas*-{major}.*.dist-info")
        parts = [int(part) for wheel in wheels for part in wheel.stem.rpartition("-")[2].split(".")[:3]] or [
            int(major),
            0,
            0,
        ]
        version = 10000 * parts[0] + 100 * parts[1] + parts[2]
        path = directory / f"cublaslt-{version}.so"
        if not path.is_file():
            _compile(_CUBLASLT, f"const int cublas_version = {version};\n", path, replaced.name, base)
        return path

    def _driver_functions(self) -> list[str]:
        """Return the driver's functions that its libraries are linked against; they load with all of them or not."""
        libraries = (read_shared_library(path) for path in self.library.parent.glob("libcudnn*.so.*"))
        return sorted({name for library in libraries for name in library.undefined if _DRIVER_FUNCTION.match(name)})


def _variables(settings: dict[str, Any]) -> dict[str, str]:
    # Without site packages the process starts in a third of the time.
    command = (sys.executable or "python3", "-I", "-S", str(_PROGRAM), json.dumps(settings))
    return {COMMAND: "\n".join(command), ANSWERS: settings["answers"]}


def _compile(source: Path, more: str, path: Path, soname: str, base: Mapping[str, str]) -> None:
    """Compile a source, after which more is written, into a library of a name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written, part = (path.with_suffix(f".{os.getpid()}{suffix}") for suffix in (".c", ".so"))
    written.write_text(more, encoding="utf-8")
    flags = ["-std=gnu11", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,-soname,{soname}"]
    try:
        compile_all([[*find_compiler(base), *flags, str(source), str(written), "-o", str(part)]])
    finally:
        written.unlink()
    part.rename(path)


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


def _check_answers(command: list[str]) -> None:
    """Ask about one convolution that every cuDNN knows.

    Raises:
        _NoAnswersError: The library has no configuration for it.
    """
    question = f"check {card_properties(find_card(_CHECKED_ON))} {graph_of(_CHECKED, 0)}\n"
    try:
        asked = subprocess.run(
            command, input=question, capture_output=True, env=_LOGGED, text=True, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _NoAnswersError(f"no line in {_LONGEST} s") from error
    if not re.match(r"[1-9]", asked.stdout):
        reasons = [*_REASON.findall(asked.stderr), *asked.stderr.strip().splitlines(), "it told no reason"]
        raise _NoAnswersError(reasons[0])
