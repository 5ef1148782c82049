"""The names and functions of torch's CUDA libraries, and a stub that reports itself for each function.

A stub is a weak symbol: where the C sources define the function, the linker takes theirs. So the sources alone decide
which functions are served, and no function that torch or another program may call is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.engines.shared_library import SharedLibrary, read_shared_library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oomdoctor.engines.installed import TorchBuild


# Libraries that the null GPU replaces, by soname.
_REPLACED = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|cufft|cufile|cupti|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host)\.so\."
)
# Of these only the functions that torch calls get a stub: they export many, and no other program calls them.
_CALLED_BY_TORCH_ONLY = ("libnvshmem",)
_ALWAYS_REPLACED = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")

# Prefix of a function's name, and its library's error code for an unsupported call. The longest match counts. cuRAND
# and NVRTC have no such code, so theirs is that of an internal error.
_NOT_SUPPORTED = {
    "cuda": 801,  # cudaErrorNotSupported
    "__cuda": 801,
    "cu": 801,  # CUDA_ERROR_NOT_SUPPORTED
    "cublas": 15,  # CUBLAS_STATUS_NOT_SUPPORTED
    "cudnn": 3000,  # CUDNN_STATUS_NOT_SUPPORTED since cuDNN 9
    "cufft": 16,  # CUFFT_NOT_SUPPORTED
    "cuFile": 5011,  # CU_FILE_PLATFORM_NOT_SUPPORTED
    "cupti": 27,  # CUPTI_ERROR_NOT_SUPPORTED
    "curand": 999,  # CURAND_STATUS_INTERNAL_ERROR
    "cusolver": 9,  # CUSOLVER_STATUS_NOT_SUPPORTED
    "cusparse": 10,  # CUSPARSE_STATUS_NOT_SUPPORTED
    "nccl": 5,  # ncclInvalidUsage
    "pnccl": 5,
    "nvml": 3,  # NVML_ERROR_NOT_SUPPORTED
    "nvrtc": 11,  # NVRTC_ERROR_INTERNAL_ERROR
    "nvshmem": 7,  # NVSHMEMX_ERROR_INTERNAL
}
_PREFIXES = sorted(_NOT_SUPPORTED, key=len, reverse=True)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_GIVES_TEXT = re.compile(
    r"(Get(Last)?Error(String|Name)|GetResultString|GetStatus(String|Name)|StatusTo(String|Name))$"
)
_MANGLED_NVSHMEM = re.compile(r"_Z\w*nvshmem")

# Headers name the functions that are looked up at run time, which are in no symbol table.
_RUN_TIME_NAME = re.compile(r"(?:\bCUDAAPI\s+|_\()(cu[A-Z]\w+|nvml[A-Z]\w+)\s*[(,)]")
_RUN_TIME_VERSION = re.compile(r"^\s*#define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+_v\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CudaLibraries:
    """The CUDA libraries that a torch build loads.

    Attributes:
        sonames: Their names, which the null GPU takes.
        functions: Every function that torch needs of them or that they export.
    """

    sonames: tuple[str, ...]
    functions: tuple[str, ...]


def read_cuda_libraries(build: TorchBuild) -> CudaLibraries:
    """Find the CUDA functions that `build` needs, and all that the CUDA libraries beside it export.

    Raises:
        OSError: A library of torch cannot be read.
    """
    own = [read_shared_library(path) for path in sorted(build.library_directory.glob("lib*.so"))]
    sonames = sorted({soname for library in own for soname in library.needed if _REPLACED.match(soname)})
    names: set[str] = set()
    for library in own:
        names |= library.undefined
    for path in _installed(sonames, own):
        if not path.name.startswith(_CALLED_BY_TORCH_ONLY):
            names |= read_shared_library(path).defined
    names |= set(_named_in_headers(build))
    functions = sorted(name for name in names if answer_of(name) is not None)
    return CudaLibraries((*_ALWAYS_REPLACED, *sonames), tuple(functions))


def _installed(sonames: Iterable[str], own: Iterable[SharedLibrary]) -> Iterator[Path]:
    directories = sorted({directory for library in own for directory in library.search_path})
    for soname in sonames:
        found = (path for directory in directories if (path := Path(directory, soname)).is_file())
        yield from list(found)[:1]


def _named_in_headers(build: TorchBuild) -> Iterator[str]:
    headers = (
        build.root / "include" / "c10" / "cuda" / "driver_api.h",
        build.root.parent / "triton" / "backends" / "nvidia" / "include" / "cuda.h",
    )
    for header in headers:
        if header.is_file():
            text = header.read_text(encoding="utf-8", errors="replace")
            yield from _RUN_TIME_NAME.findall(text)
            yield from _RUN_TIME_VERSION.findall(text)


def answer_of(name: str) -> int | None:
    """Return the error code with which an unserved function answers; None where `name` is no CUDA function."""
    if _MANGLED_NVSHMEM.match(name):
        return _NOT_SUPPORTED["nvshmem"]
    if not _IDENTIFIER.fullmatch(name):
        return None
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
    if prefix is None or (prefix == "cu" and not name[2:3].isupper()):
        return None
    return _NOT_SUPPORTED[prefix]


def stub_source(functions: Iterable[str]) -> str:
    """Return the C source of one weak stub for each function."""
    return "\n".join(['#include "null_gpu.h"', "#define STUB SERVED __attribute__((weak))", *map(_stub, functions), ""])


def _stub(name: str) -> str:
    if _GIVES_TEXT.search(name):
        return f'STUB const char *{name}(void) {{ return "not served by the null GPU"; }}'
    return f'STUB long {name}(void) {{ null_report_unknown("{name}"); return {answer_of(name)}; }}'
