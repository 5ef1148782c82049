"""The environment that makes a child process see a null GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from oomdoctor.engines.null_gpu.build import LIBRARY, SERVED_CUDA_MAJORS, build_library
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.torch_build import TorchBuild


# The dynamic linker splits LD_PRELOAD at these.
_SEPARATORS = (" ", ":", "\t", "\n")
# cuDNN's newer interface takes whole graphs of operations, which the null GPU does not read.
_PYTORCH_CHOICES = {
    # Convolutions and batch norms go through the older interface. The tensors that PyTorch makes are the same.
    "TORCH_CUDNN_V8_API_DISABLED": "1",
    # PyTorch 2.11 and later would take cuDNN's attention for half precision on compute capability 9 and 10. With this
    # it takes flash attention. Both keep the output and one fp32 number a row. In backward, flash attention allocates
    # an fp32 accumulator for the query's gradient, and cuDNN asks for a workspace whose size only it knows: flash
    # attention is a closer stand-in than cuDNN with no workspace at all.
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
}
_TOTAL_BYTES = "OOMDOCTOR_NULL_TOTAL_BYTES"
# Variables that choose among real GPUs; the null GPU is device 0 and the only one.
_DROPPED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def environment(card: Card, build: TorchBuild, base: Mapping[str, str]) -> dict[str, str]:
    """Build the null GPU if needed, and return the environment of a process that sees it as `card`.

    Child processes inherit it, so data loaders and launchers see the card too; each process has memory of its own.

    Args:
        card: The card of the null GPU.
        build: The torch that the process will import.
        base: Environment to start from; its `LD_PRELOAD` and `LD_LIBRARY_PATH` are kept.

    Raises:
        NoAnswerError: The null GPU cannot run here; the message says why and the hint what to do.
    """
    _check_served(build)
    directory = build_library(build, base)
    _check_preloadable(directory)
    result = {name: value for name, value in base.items() if name not in _DROPPED}
    result["LD_PRELOAD"] = _prepend(str(directory / LIBRARY), base.get("LD_PRELOAD"))
    result["LD_LIBRARY_PATH"] = _prepend(str(directory), base.get("LD_LIBRARY_PATH"))
    # Triton links its launchers against the driver and would rather use a real one that the system knows.
    result["TRITON_LIBCUDA_PATH"] = str(directory)
    return result | _PYTORCH_CHOICES | _card_variables(card)


def with_total_bytes(environment: Mapping[str, str], total_bytes: int) -> dict[str, str]:
    """Return the environment with another total memory of the card.

    Args:
        environment: An environment that `environment` returned.
        total_bytes: Memory of the card.
    """
    return {**environment, _TOTAL_BYTES: str(total_bytes)}


def _check_served(build: TorchBuild) -> None:
    if sys.platform != "linux":
        raise NoAnswerError(
            f"the null GPU runs on Linux alone, and this is `{sys.platform}`",
            hint="use a Linux machine or container; it needs no GPU",
        )
    if build.cuda is None:
        raise NoAnswerError(
            f"the null GPU needs a CUDA build of torch, and `{build.version}` is none",
            hint="install a CUDA build, which needs no GPU to run here: `pip install torch` brings one on Linux",
        )
    if build.cuda_major not in SERVED_CUDA_MAJORS:
        served = " and ".join(str(major) for major in SERVED_CUDA_MAJORS)
        raise NoAnswerError(
            f"the null GPU serves CUDA {served}, and torch `{build.version}` was built for CUDA {build.cuda}",
            hint="install a torch that was built for one of these",
        )


def _check_preloadable(directory: Path) -> None:
    if any(separator in str(directory) for separator in _SEPARATORS):
        raise NoAnswerError(
            f"the null GPU cannot be loaded from `{directory}`: the linker splits its path at spaces and colons",
            hint="set `XDG_CACHE_HOME` to a directory without spaces and colons in its path",
        )


def _prepend(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def _card_variables(card: Card) -> dict[str, str]:
    major, minor = card.compute_capability
    return {
        "OOMDOCTOR_NULL_NAME": card.name,
        _TOTAL_BYTES: str(card.total_bytes),
        "OOMDOCTOR_NULL_CONTEXT_BYTES": str(card.context_bytes),
        "OOMDOCTOR_NULL_COMPUTE_CAPABILITY": f"{major}.{minor}",
        "OOMDOCTOR_NULL_SM_COUNT": str(card.sm_count),
        "OOMDOCTOR_NULL_THREADS_PER_SM": str(card.max_threads_per_sm),
        "OOMDOCTOR_NULL_SHARED_MEMORY_PER_BLOCK_BYTES": str(card.shared_memory_per_block_bytes),
        "OOMDOCTOR_NULL_L2_BYTES": str(card.l2_bytes),
    }
