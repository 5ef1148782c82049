"""Which libraries a file stands on, as far as rules about tensors care."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module

_OTHER_TENSORS: Final = re.compile(
    r"^[ \t]*(?:import|from)[ \t]+(?:jax|flax|equinox|haiku|tensorflow|keras|mxnet|paddle|mindspore|tinygrad|mlx)\b",
    re.MULTILINE,
)
_ON_GPU: Final = re.compile(
    r"\bcuda\b|\bdevice\b|\.to\(|accelerat|deepspeed|\bfabric\b|\bxpu\b|\bnpu\b|\bmps\b|lightning|DistributedDataParallel"
)
_SEVERAL_PROCESSES: Final = re.compile(
    r"init_process_group\(|DistributedDataParallel\(|\bDDP\(|\bmp\.spawn\(|multiprocessing\.spawn\("
)

_SAVES_ELSEWHERE: Final = re.compile(r"fsdp|fullyshard|fully_shard|torch_xla|deepspeed|megatron", re.IGNORECASE)
_TORCH: Final = re.compile(r"\btorch\.(?!utils\.data)|\.cuda\(|\.to\(")


def has_other_tensors(module: Module) -> bool:
    """Whether a file imports another library with tensors and models, whose `model(x)` records nothing."""
    return _OTHER_TENSORS.search(module.text) is not None


def is_of_other_tensors(node: ast.AST, module: Module) -> bool:
    """Whether a node may deal with another library's tensors: its file imports one, and its function says no torch."""
    if not has_other_tensors(module):
        return False
    line = getattr(node, "lineno", 0)
    around = next((function.node for function in module.functions if _has_line(function.node, line)), None)
    return around is None or _TORCH.search(ast.get_source_segment(module.text, around) or "") is None


def _has_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def may_use_gpu(module: Module) -> bool:
    """Whether anything in a file's text says that it computes elsewhere than on the processor."""
    return _ON_GPU.search(module.text) is not None


def runs_in_several_processes(module: Module) -> bool:
    """Whether a file sets up distributed training, each process of which runs it."""
    return _SEVERAL_PROCESSES.search(module.text) is not None


def has_own_checkpoints(module: Module) -> bool:
    """Whether a file deals with a library whose checkpoints are not saved from where the model is."""
    return _SAVES_ELSEWHERE.search(module.text) is not None
