"""What a question is known by: all that decides its answer and can be told before the target runs."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.checking.cache.installation import installed_packages, own_code, torch_files
from oomdoctor.devices.monitor import has_local_gpu
from oomdoctor.probing.command.uses import found_program
from oomdoctor.targets.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.probing.request import ProbeRequest

_FORMAT: Final = 1
_NATIVE_PREFIXES: Final = (
    *("CUBLAS", "CUDA", "CUDNN", "LD_", "MALLOC_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_"),
    *("PYTHON", "PYTORCH_", "TORCH", "TRITON_"),
)
"""Variables that native code or Python itself reads, so that nobody sees them being read."""


def is_repeatable(request: ProbeRequest, environment: Mapping[str, str]) -> bool:
    """Whether a null GPU would answer; what a real one answers depends on who else uses it at the time."""
    if request.engine == "auto" and request.gpu is None:
        return request.device is None and not has_local_gpu(environment)
    return request.engine != "cuda"


def key_of(request: ProbeRequest, environment: Mapping[str, str]) -> str:
    """A name for the question, of 40 hexadecimal digits; other questions have other names.

    Args:
        request: The question.
        environment: Variables by name.

    Raises:
        TargetError: The request's target names nothing.
        OSError: What is installed cannot be read.
    """
    described = json.dumps(_description(request, environment), sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:40]


def _reference(request: ProbeRequest, directory: Path, environment: Mapping[str, str]) -> object:
    if request.command is None:
        return asdict(parse_reference(request.target, directory=directory))
    return found_program(request.command, directory, environment)


def _description(request: ProbeRequest, environment: Mapping[str, str]) -> dict[str, object]:
    directory = Path(request.directory).resolve()  # `..` from a subfolder is the same folder
    return {
        "format": _FORMAT,
        "request": {**asdict(request), "directory": str(directory)},
        # A file or module that comes or goes can make the same text name another target.
        "reference": _reference(request, directory, environment),
        "environment": {name: value for name, value in environment.items() if name.startswith(_NATIVE_PREFIXES)},
        "platform": [sys.platform, platform.machine()],
        "python": [sys.version, sys.prefix],
        "oomdoctor": own_code(),
        "torch": torch_files(),
        "packages": installed_packages(),
    }
