"""Constants that PyTorch's compiler folds on a null GPU: their true values.

Inductor looks in each graph for tensors that have one value throughout. It computes that value on the GPU, in a tensor
of one element, reads it, and simplifies what a 0 or a 1 changes nothing in: `x + 0` and `x * 1` become `x`, and
attention has no bias where the bias is 0. Read as zeros, `x + 6` would become `x` as well, and share its memory. While
Inductor compiles, values of single floating-point numbers are kept too, as `known_values` keeps those of integers, in
tensors of the same size. A constant whose value is not known all the same is not folded.

Private names of PyTorch, tested with 2.15: `compile_fx` of `torch._inductor`, and `UniformValueConstantFolder` of its
`fx_passes.joint_graph`. Where there is no such name, nothing is changed, and the read is told.
"""

# ruff: noqa: ANN401, SLF001 - torch has no type here, nor public ways

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded
from .operator_kinds import is_unobserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from .known_values import KnownValues

_COMPILER, _FOLDER = "torch._inductor.compile_fx", "torch._inductor.fx_passes.joint_graph"


def keep_constants(known: KnownValues) -> None:
    """Keep the values of constants while Inductor compiles, once it is imported."""
    imports.when_imported(_COMPILER, functools.partial(guarded(_patch), known))


def _patch(known: KnownValues) -> None:
    torch: Any = sys.modules["torch"]
    folder: Any = sys.modules[_FOLDER].UniformValueConstantFolder
    folder._deduce_value = _only_known(folder._deduce_value, known, torch)
    compiler: Any = sys.modules[_COMPILER]
    compiler.compile_fx = _keeping(compiler.compile_fx, known)


def _keeping(compile_graph: Callable[..., Any], known: KnownValues) -> Callable[..., Any]:
    @functools.wraps(compile_graph)
    def keep(*args: Any, **options: Any) -> Any:
        before, known.keeps_numbers = known.keeps_numbers, True
        try:
            return compile_graph(*args, **options)
        finally:
            known.keeps_numbers = before

    return keep


def _only_known(deduce: Callable[..., Any], known: KnownValues, torch: Any) -> Callable[..., Any]:
    """Deduce a node's value; one that would be read from the null GPU as zero counts as unknown."""

    @functools.wraps(deduce)
    def deduce_known(folder: Any, node: Any) -> Any:
        value = deduce(folder, node)
        is_unknown = isinstance(value, torch.Tensor) and value.is_cuda and known.host(value) is None
        return folder.unknown_value if is_unknown else value

    return deduce_known


def keep_traced(known: KnownValues, copied: Any, values: Callable[[], Any]) -> Any:
    """Return a tensor that was copied from the host, with its values; as it is where they cannot be kept.

    `torch.tensor(0.5, device="cuda")` in a function that is being compiled makes that number itself. What is traced is
    what becomes of it, so the modes that trace are not asked.
    """
    if is_unobserved():
        return known.kept(copied, values)
    with sys.modules["torch.utils._python_dispatch"]._disable_current_modes():
        return known.kept(copied, values) if is_unobserved() else copied
