"""Which libraries a file stands on, as far as rules about tensors care."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module

_OTHER_TENSORS: Final = re.compile(
    r"^\s*(?:import|from)\s+(?:jax|flax|equinox|haiku|tensorflow|keras|mxnet|paddle|mindspore|tinygrad|mlx)\b",
    re.MULTILINE,
)
_ON_GPU: Final = re.compile(
    r"\bcuda\b|\bdevice\b|\.to\(|accelerat|deepspeed|\bfabric\b|\bxpu\b|\bnpu\b|\bmps\b|lightning|DistributedDataParallel"
)
_SEVERAL_PROCESSES: Final = re.compile(
    r"init_process_group\(|DistributedDataParallel\(|\bDDP\(|\bmp\.spawn\(|multiprocessing\.spawn\("
)

_SAVES_ELSEWHERE: Final = re.compile(r"fsdp|fullyshard|fully_shard|torch_xla|deepspeed|megatron", re.IGNORECASE)


def has_other_tensors(module: Module) -> bool:
    """Whether a file imports another library with tensors and models, whose `model(x)` records nothing."""
    return _OTHER_TENSORS.search(module.text) is not None


def may_use_gpu(module: Module) -> bool:
    """Whether anything in a file's text says that it computes elsewhere than on the processor."""
    return _ON_GPU.search(module.text) is not None


def runs_in_several_processes(module: Module) -> bool:
    """Whether a file sets up distributed training, each process of which runs it."""
    return _SEVERAL_PROCESSES.search(module.text) is not None


def has_own_checkpoints(module: Module) -> bool:
    """Whether a file deals with a library whose checkpoints are not saved from where the model is."""
    return _SAVES_ELSEWHERE.search(module.text) is not None
