"""Readings of this machine's GPUs: through NVML, or through nvidia-smi and GPUtil where NVML is missing."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from oomdoctor.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    Attributes:
        pid: Process id as the driver sees it; in a container that is the host's.
        name: Its executable; None where the driver does not report it.
        used_bytes: Memory that it holds; None where the driver does not report it.
    """

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One GPU of this machine.

    Attributes:
        index: nvidia-smi's index, in the order of the PCI bus; CUDA may order otherwise.
        uuid: `GPU-` and 36 characters; the same for CUDA.
        name: As `torch.cuda.get_device_name` prints it.
        total_bytes: Physical memory; CUDA can use somewhat less.
        used_bytes: Memory in use, without what the driver reserves where `reserved_bytes` is known.
        free_bytes: Free memory.
        reserved_bytes: Memory that the driver reserves; None where it is counted as used.
        utilisation_percent: Share of the last moments in which a kernel ran.
        processes: Processes that hold memory; None where the driver does not report them.
        source: Source of the reading.
        error: Why the GPU could not be read, such as `GPU is lost`; None where it could.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    utilisation_percent: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    source: Literal["nvml", "nvidia-smi"]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of this machine, at least one.

    Attributes:
        gpus: In the order of their index.
        notes: Remarks for the reader: a source that failed, an installation to repair.
    """

    gpus: tuple[LocalGpu, ...]
    notes: tuple[str, ...] = ()


class SourceError(Exception):
    """A source of readings failed; the text says why, and another source may work."""


# Newer bindings call the newest version only, and older drivers have the older ones only.
_PROCESS_VERSIONS: Final = ("_v3", "_v2", "")


def read_nvml() -> tuple[LocalGpu, ...]:
    """Read every GPU that NVML counts, including those that fail.

    Raises:
        SourceError: NVML is missing: no bindings, no driver library, or a driver that does not answer.
    """
    try:
        with warnings.catch_warnings():
            # A deprecated distribution of the same name warns here; the monitor says so in plain words.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # noqa: PLC0415 - costs 30 ms that only this reading needs
    except ImportError as error:
        raise SourceError(f"the module `pynvml` of `nvidia-ml-py` cannot be imported: {error}") from error
    with _session(pynvml):
        count, problem = _ask(pynvml.nvmlDeviceGetCount)
        if count is None:
            raise SourceError(f"NVML does not count its GPUs: {problem}")
        return tuple(_read_nvml_gpu(pynvml, index) for index in range(count))


@contextmanager
def _session(pynvml: ModuleType) -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise SourceError("the NVIDIA driver's library `libnvidia-ml.so.1` is not installed") from error
    except pynvml.NVMLError as error:
        raise SourceError(f"NVML does not start: {error}") from error
    try:
        yield
    finally:
        _ask(pynvml.nvmlShutdown)


def _read_nvml_gpu(pynvml: ModuleType, index: int) -> LocalGpu:
    handle, problem = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return LocalGpu(index=index, source="nvml", error=problem)
    memory, problem = _read_memory(pynvml, handle)
    utilisation, _ = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return LocalGpu(
        index=index,
        uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, handle)[0]),
        name=_text(_ask(pynvml.nvmlDeviceGetName, handle)[0]),
        total_bytes=memory and int(memory.total),
        used_bytes=memory and int(memory.used),
        free_bytes=memory and int(memory.free),
        reserved_bytes=memory and getattr(memory, "reserved", None),
        utilisation_percent=utilisation and int(utilisation.gpu),
        processes=_read_processes(pynvml, handle),
        source="nvml",
        error=problem,
    )


def _read_memory(pynvml: ModuleType, handle: object) -> tuple[Any, str | None]:
    """Return the memory and no error, or None and the error; a GPU without memory of its own is no error.

    Only the second version of the call keeps the driver's reserve apart from what is used. Any failure of it is worth
    a try of the first: old drivers lack it, and it has been seen to fail under WSL alone.
    """
    version = getattr(pynvml, "nvmlMemory_v2", None)
    if version is not None:
        memory, _ = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, version)
        if memory is not None:
            return memory, None
    memory, problem = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return memory, None if problem == str(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)) else problem


def _read_processes(pynvml: ModuleType, handle: object) -> tuple[GpuProcess, ...] | None:
    """Return computing and drawing processes, each once, the largest first; None where both lists fail."""
    lists = [_ask_versions(pynvml, f"nvmlDeviceGet{kind}RunningProcesses", handle) for kind in ("Compute", "Graphics")]
    if all(found is None for found in lists):
        return None
    by_pid = {int(process.pid): process for found in lists for process in found or ()}
    processes = [
        GpuProcess(
            pid=pid, name=_text(_ask(pynvml.nvmlSystemGetProcessName, pid)[0]) or None, used_bytes=process.usedGpuMemory
        )
        for pid, process in by_pid.items()
    ]
    return tuple(sorted(processes, key=lambda process: (-(process.used_bytes or 0), process.pid)))


def _ask_versions(pynvml: ModuleType, function: str, handle: object) -> list[Any] | None:
    for version in _PROCESS_VERSIONS:
        call = getattr(pynvml, function + version, None)
        if call is not None and (answer := _ask(call, handle)[0]) is not None:
            return list(answer)
    return None


def _ask(call: Callable[..., Any], *arguments: object) -> tuple[Any, str | None]:
    """Return the answer and None, or None and the problem.

    The bindings raise NVMLError, and beside it a plain Exception where driver and bindings differ in version and a
    UnicodeDecodeError for names that are not text: whatever it is, one field is missing and no more.
    """
    try:
        return call(*arguments), None
    except Exception as error:  # noqa: BLE001 - see the docstring
        return None, str(error) or type(error).__name__


def _text(value: object) -> str | None:
    """Decode a text; old bindings return bytes."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_TIMEOUT_SECONDS: Final = 20.0
_NOT_A_NUMBER: Final = re.compile(r"ValueError: invalid literal for int\(\) with base 10: (?P<answer>.+)", re.DOTALL)


def read_nvidia_smi(timeout_seconds: float = _TIMEOUT_SECONDS) -> tuple[LocalGpu, ...]:
    """Read every GPU that nvidia-smi lists, without its processes.

    Raises:
        SourceError: There is no nvidia-smi, GPUtil cannot be imported, the answer is not a list of GPUs, or none
            came in time.
    """
    if shutil.which("nvidia-smi") is None:
        raise SourceError("`nvidia-smi` is not on the PATH")
    # -P: the child must not find modules beside the script, or in the current directory.
    command = [sys.executable, "-P", str(Path(__file__).with_name("gputil_child.py"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=timeout_seconds)
        except BaseException as error:
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise SourceError(f"`nvidia-smi` did not answer within {timeout_seconds:g} seconds") from error
            raise
    answer = _parse(output.decode("utf-8", "replace"))
    if "error" in answer:
        raise SourceError(_explain_gputil_error(answer["error"]))
    return tuple(_read_smi_row(row) for row in answer["gpus"])


def _parse(output: str) -> dict[str, Any]:
    """Parse the last line of the child's output; lines before it are GPUtil's or nvidia-smi's own."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise SourceError("GPUtil ended without an answer") from error
    if not isinstance(answer, dict):
        raise SourceError("GPUtil ended without an answer")
    return answer


def _explain_gputil_error(error: str) -> str:
    """Return nvidia-smi's message behind an exception of GPUtil."""
    if match := _NOT_A_NUMBER.fullmatch(error):
        return f"`nvidia-smi` answers: {_unquoted(match['answer'])}"
    if error.startswith(("ModuleNotFoundError", "ImportError")):
        return f"GPUtil, which reads `nvidia-smi`, cannot be imported: {error.partition(': ')[2]}"
    if error.startswith("ZeroDivisionError"):
        return "`nvidia-smi` reports a GPU with no memory at all"
    return f"GPUtil cannot read what `nvidia-smi` answers ({error})"


def _unquoted(text: str) -> str:
    try:
        return str(ast.literal_eval(text)).strip()
    except (ValueError, SyntaxError):
        return text


def _read_smi_row(row: dict[str, Any]) -> LocalGpu:
    utilisation = _finite(row["load"])
    return LocalGpu(
        index=row["id"],
        uuid=row["uuid"],
        name=row["name"],
        total_bytes=_mebibytes(row["memoryTotal"]),
        used_bytes=_mebibytes(row["memoryUsed"]),
        free_bytes=_mebibytes(row["memoryFree"]),
        utilisation_percent=None if utilisation is None else round(utilisation * 100),
        source="nvidia-smi",
    )


def _mebibytes(value: float) -> int | None:
    known = _finite(value)
    return None if known is None else round(known * MIB)


def _finite(value: float) -> float | None:
    """Return None for NaN, which GPUtil has for values that are not numbers, such as `[N/A]`."""
    return value if math.isfinite(value) else None
