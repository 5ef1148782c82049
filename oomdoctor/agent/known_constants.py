"""Constants that keep their value on a null GPU: numbers that C++ makes there, and what PyTorch's compiler folds.

C++ puts numbers on the device by itself, such as the 1 in `mask[rows, columns] = 1`; integers keep their value. It
makes a tensor of no dimensions by `scalar_tensor`. Such a tensor must not have the key of known tensors: C++ marks
the base in `10000 ** floats` as a number, and PyTorch hands no number on the device to a kernel in Python. So the value
is kept beside the storage without the key, and holds as long as nothing was written to the tensor.

Floating-point tensors that are filled with one number when they are made keep that number in the same way: a mask of
ones that a program makes itself becomes booleans, of which it asks whether all are true.

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

_NUMBER = "_oomdoctor_number"
_FILL = "_oomdoctor_fill"


def number_maker(known: KnownValues, torch: Any) -> Callable[..., Any]:
    """Return what makes a number on the device; floating-point ones are known only while Inductor folds constants."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def make(value: Any, **options: Any) -> Any:
        made = torch.ops.aten.scalar_tensor.default.redispatch(keys, value, **options)
        if known.keeps_numbers:
            return known.kept(made, lambda: torch.tensor(value))
        guarded(_keep)(made, value, torch)
        return made

    return make


def _keep(made: Any, value: Any, torch: Any) -> None:
    if not (made.dtype.is_floating_point or made.dtype.is_complex) and not made.is_inference():
        with torch.inference_mode(mode=False):
            setattr(made.untyped_storage(), _NUMBER, torch.tensor(value, dtype=made.dtype, device="cpu"))


def number_of(tensor: Any) -> Any:
    """Return the value of such a number, as a tensor of the host; None of any other tensor."""
    if tensor.dim() or tensor.dtype.is_floating_point or tensor.is_inference() or tensor._version:
        return None
    return getattr(tensor.untyped_storage(), _NUMBER, None)


def keep_fill(made: Any, name: str, args: Any, options: dict[str, Any]) -> None:
    """Keep the number that a new floating-point tensor is filled with, other than the zero that is read anyway.

    A storage that Python has seen is not the gradient's alone, so autograd would no longer add to it in place: what the
    backward makes is left as it is.

    Args:
        made: The tensor, which nobody else has seen.
        name: The operator that made it, with its namespace.
        args: Its arguments by position.
        options: Its arguments by name.
    """
    is_backward = sys.modules["torch"]._C._current_graph_task_id() != -1
    if is_backward or "zeros" in name or not made.dtype.is_floating_point or made.is_inference():
        return
    number = 1 if "ones" in name else options.get("fill_value", args[-1] if args else None)
    if "arange" not in name and isinstance(number, (int, float)) and number:
        setattr(made.untyped_storage(), _FILL, number)


def fill_of(tensor: Any) -> Any:
    """Return the number that a floating-point tensor was filled with; None where none is known."""
    if not tensor.dtype.is_floating_point or tensor.is_inference() or tensor._version:
        return None
    return getattr(tensor.untyped_storage(), _FILL, None)


_COMPILER, _FOLDER = "torch._inductor.compile_fx", "torch._inductor.fx_passes.joint_graph"


def keep_folded(known: KnownValues) -> None:
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
