"""Local GPUs as NVML reports them: one field that is not supported, or one lost GPU, leaves the rest alone."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.devices.local_gpu import GpuProcess, LocalGpu, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

# Newer bindings call the newest version only, and older drivers have the older ones only.
_PROCESS_VERSIONS: Final = ("_v3", "_v2", "")


def read_nvml() -> tuple[LocalGpu, ...]:
    """Every GPU that NVML counts, one row each, a failing one included.

    Raises:
        SourceError: NVML cannot be had: no bindings, no driver library, a driver that does not answer.
    """
    pynvml = _import_bindings()
    with _session(pynvml):
        count, problem = _ask(pynvml.nvmlDeviceGetCount)
        if count is None:
            raise SourceError(f"NVML does not count its GPUs: {problem}")
        return tuple(_read_gpu(pynvml, index) for index in range(count))


def _import_bindings() -> ModuleType:
    try:
        with warnings.catch_warnings():
            # A deprecated distribution of the same name warns here; the monitor says so in plain words.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # noqa: PLC0415 - costs 30 ms that only this reading needs
    except ImportError as error:
        raise SourceError(f"the module `pynvml` of `nvidia-ml-py` cannot be imported: {error}") from error
    return pynvml  # type: ignore[no-any-return, unused-ignore]


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


def _read_gpu(pynvml: ModuleType, index: int) -> LocalGpu:
    handle, problem = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return _unreadable(index, problem)
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


def _unreadable(index: int, problem: str | None) -> LocalGpu:
    return LocalGpu(
        index=index,
        uuid=None,
        name=None,
        total_bytes=None,
        used_bytes=None,
        free_bytes=None,
        reserved_bytes=None,
        utilisation_percent=None,
        processes=None,
        source="nvml",
        error=problem,
    )


def _read_memory(pynvml: ModuleType, handle: object) -> tuple[Any, str | None]:
    """Memory and no error, or None and why; a GPU that has no memory of its own is not in error.

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
    """Computing and drawing processes, each once, the largest first; None where neither list can be had."""
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
    """The answer and no problem, or None and the problem.

    The bindings raise NVMLError, and beside it a plain Exception where driver and bindings differ in version and a
    UnicodeDecodeError for names that are not text: whatever it is, one field is missing and no more.
    """
    try:
        return call(*arguments), None
    except Exception as error:  # noqa: BLE001 - see the docstring
        return None, str(error) or type(error).__name__


def _text(value: object) -> str | None:
    """Old bindings return bytes."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
