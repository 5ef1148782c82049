"""PyTorch's operators, by what they do to values; their arguments, and a run of them on the host.

Shared by the null GPU and the trace engine, which keep values of integers in different places.
"""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here; PyTorch has no public way

from __future__ import annotations

import enum
import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class OperatorKind(enum.Enum):
    """Effect of an operator on values."""

    PLAIN = enum.auto()  # it is made of others, which are asked themselves; it makes a view; or it reads shapes only
    COMPUTES = enum.auto()
    FINDS = enum.auto()  # the size of what it returns depends on values
    READS = enum.auto()  # it returns a number
    UNKNOWN = enum.auto()  # what it computes is not known, as of random numbers and of what ranks send


_OF_NUMBERS = ("aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar")
"""Operators made of others that get a number as a tensor of the device, whose value nobody would know."""


@functools.lru_cache(maxsize=None)
def kind_of(operator: Any) -> OperatorKind:
    """Return what an operator does."""
    torch, name, schema = sys.modules["torch"], operator.name(), operator._schema
    if not name.startswith("aten::") or torch.Tag.nondeterministic_seeded in operator.tags or "resize" in name:
        return OperatorKind.PLAIN if name.startswith("prims::") else OperatorKind.UNKNOWN
    if name in ("aten::_local_scalar_dense", "aten::equal"):
        return OperatorKind.READS
    if name in _OF_NUMBERS:
        return OperatorKind.COMPUTES
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    is_view = all(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    returns_tensors = any("Tensor" in str(one.type) for one in schema.returns)
    only_looks = not returns_tensors and not schema.is_mutable
    if is_composite or (is_view and not schema.is_mutable) or only_looks or torch.Tag.inplace_view in operator.tags:
        return OperatorKind.PLAIN
    return OperatorKind.FINDS if torch.Tag.dynamic_output_shape in operator.tags else OperatorKind.COMPUTES


def is_out(operator: Any) -> bool:
    """Return whether an operator writes its results to tensors that it is given for that."""
    return any(argument.is_out for argument in operator._schema.arguments)


def tensors_in(value: Any) -> list[Any]:
    """Return every tensor of a nest of lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return [value] if isinstance(value, sys.modules["torch"].Tensor) else []


def replaced(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """Return a nest of lists and tuples with another value in place of each tensor."""
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(one, replacement) for one in value)
    return replacement(value) if isinstance(value, sys.modules["torch"].Tensor) else value


def written_tensors(operator: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors that an operator writes to."""
    found = []
    for index, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def given_to(operator: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments by name that an operator reads, without those that it writes to."""
    outs = [argument.name for argument in operator._schema.arguments if argument.is_out]
    return tuple(value for name, value in kwargs.items() if name not in outs)


def with_tensors(operator: Any, args: Any) -> Any:
    """Return the arguments with tensors where they are declared: kernels in Python receive numbers as numbers."""
    if not any(isinstance(given, (int, float, complex)) for given in args):
        return args
    torch = sys.modules["torch"]
    first, traced = next(iter(tensors_in(args)), None), torch._C._get_tracing_state()
    if traced is not None:
        torch._C._set_tracing_state(None)  # a trace would warn of a constant
    try:
        return tuple(
            torch.tensor(given, dtype=None if first is None else torch.result_type(first, given))
            if isinstance(given, (int, float, complex)) and str(one.type) == "Tensor"
            else given
            for given, one in zip(args, operator._schema.arguments, strict=False)
        )
    finally:
        if traced is not None:
            torch._C._set_tracing_state(traced)


def is_unobserved() -> bool:
    """Return whether no mode and no trace is active that would see what is computed on the host."""
    c = sys.modules["torch"]._C
    return not (c._len_torch_dispatch_stack() or c._functorch.peek_interpreter_stack() or c._get_tracing_state())


def run_on_host(operator: Any, args: Any, options: dict[str, Any]) -> Any:
    """Run an operator whose tensors are on the host, and what it makes there.

    Returns:
        None where the host cannot; nothing in a tuple of what returns nothing.
    """
    torch = sys.modules["torch"]
    options = {name: value for name, value in options.items() if name not in ("device", "pin_memory")}
    if "device" in [argument.name for argument in operator._schema.arguments]:
        options["device"] = "cpu"
    try:
        with torch.inference_mode(mode=False), torch.no_grad():
            found = operator(*args, **options)
            return () if found is None else found
    except Exception:  # noqa: BLE001 - a type that the host has no kernel for, or indices out of range
        return None
