"""Values that the emulated GPU's integers and booleans would have, kept on the host as long as their storage lives.

As on a null GPU: what a program makes of integers on the host, or fills on the device, is known, and so is what
operators compute of nothing else. What it reads back is then true, and an index out of range is found.
See `oomdoctor.agent.known_values`.
"""

# ruff: noqa: ANN401 - whatever operators take and return

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent import index_bounds, unknown_reads
from oomdoctor.agent.assumed_values import are_few, even_choices
from oomdoctor.agent.known_values import LARGEST_BYTES
from oomdoctor.agent.operator_kinds import (
    OperatorKind,
    is_out,
    is_unobserved,
    kind_of,
    replaced,
    run_on_host,
    tensors_in,
    with_tensors,
    written_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FILL_BY: Final = torch.ops.aten.fill_.Scalar
"""The operator that PyTorch fills a new tensor by, other than with the zeros that are read anyway."""
_FILL: Final = "_oomdoctor_fill"
_FILLING: Final = ("aten::zero_", "aten::fill_.Scalar", "aten::fill_.Tensor")
"""Operators whose result does not depend on what was there before."""
CHOOSING: Final = (torch.ops.aten.topk.default, torch.ops.aten.argmax.default, torch.ops.aten.max.dim)
"""Operators that choose along a dimension."""
_PLACING: Final = ("aten::scatter_.src", "aten::_index_put_impl_")
"""Operators that place values by an index: where it names every position, they fill as well."""
_COPYING: Final = ("aten::_copy_from", "aten::_to_copy")


class TracedValues:
    """Keeps values beside the emulated device's storages, and runs operators on them."""

    def __init__(self) -> None:
        self._checks = index_bounds.checks(torch, host_values, _assumed)

    def run(self, operator: Any, run: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator that has integers or booleans among its arguments, and keep the values of what it returns.

        Args:
            operator: The operator.
            run: Allocates its results on the device.
            args: Its arguments by position.
            kwargs: Its arguments by name.

        Raises:
            IndexError: A known index is out of range.
        """
        self.check(operator, args)
        kind, name = kind_of(operator), operator.name()
        if name == "aten::resize_":
            return run(operator, args, kwargs)  # its storage, and with it what is known, is another where it grows
        if name in _COPYING:
            return _copied(operator, run, args, kwargs)
        if kind is OperatorKind.READS and is_unobserved() and _are_known(args):
            _note(args, if_deciding=True)
            return run_on_host(operator, replaced(args, host_values), {})
        if kind is OperatorKind.PLAIN and not is_out(operator):
            return run(operator, args, kwargs)
        return _computed(operator, run, args, kwargs)

    def check(self, operator: Any, args: Any) -> None:
        """Check the known indices among an operator's arguments.

        Raises:
            IndexError: One is out of range.
        """
        if operator in self._checks and is_unobserved():
            self._checks[operator](args)


def spread_choices(operator: Any, args: Any, result: Any) -> None:
    """Keep values of the indices that an operator has chosen among a few, where nobody knows of what: an even choice.

    Args:
        operator: One of `CHOOSING`.
        args: Its arguments by position.
        result: What it returned.
    """
    tensor, number, dim = (*args, None, None)[:3]
    dim, count = (-1 if dim is None else dim, number) if operator.name() == "aten::topk" else (number, 1)
    indices = result[1] if isinstance(result, tuple) else result
    if dim is not None and is_unobserved() and are_few(tensor, dim) and host_values(tensor) is None:
        chosen = even_choices(torch, tensor, dim, count)
        keep_values(indices, chosen.reshape(indices.shape), "even")


def keep_fills(operator: Any, args: Any, result: Any) -> None:
    """Keep the number that a new tensor of floating-point numbers is filled with, also where it becomes integers.

    Args:
        operator: An operator that has no integers among its arguments.
        args: Its arguments by position.
        result: What it returned.
    """
    if operator is _FILL_BY and is_unobserved():
        _keep_fill(*args)
    elif operator is torch.ops.aten._to_copy.default and not (result.is_cpu or result.dtype.is_floating_point):  # noqa: SLF001 - PyTorch's name
        number, version = getattr(args[0].untyped_storage(), _FILL, (None, None))
        if number is not None and version == _version(args[0]) and is_unobserved():
            keep_values(result, torch.full(result.shape, number, dtype=result.dtype))


def _keep_fill(tensor: torch.Tensor, number: complex) -> None:
    storage = tensor.untyped_storage()
    is_whole = tensor.numel() * tensor.element_size() == storage.nbytes()
    if is_whole and isinstance(number, int | float) and number:
        setattr(storage, _FILL, (number, _version(tensor)))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001 - PyTorch has no public way


def _assumed(value: Any) -> str:
    """Return how one of the tensors' values was assumed, an effect of `unknown_reads`; nothing where all are known."""
    storages: list[Any] = [tensor.untyped_storage() for tensor in tensors_in(value) if not tensor.is_cpu]
    kept = (getattr(storage, "_oomdoctor_values", None) for storage in storages)
    return next(filter(None, (getattr(values, "assumed", "") for values in kept)), "")


def _note(value: Any, *, if_deciding: bool = False) -> None:
    if assumed := _assumed(value):
        unknown_reads.note(assumed, if_deciding=if_deciding)


def has_integers(args: Any) -> bool:
    """Return whether arguments have a tensor of integers or booleans; of a list, the first tensor tells."""
    for value in args:
        if isinstance(value, list | tuple):
            value = next((one for one in value if isinstance(one, torch.Tensor)), None)  # noqa: PLW2901 - looked into
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
            return True
    return False


def host_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, as a tensor of the host with its layout; None where they are not known."""
    if tensor.is_cpu:
        return tensor
    if not tensor.numel() and not tensor.dtype.is_floating_point:
        return _empty_on_host(tensor)
    flat = getattr(tensor.untyped_storage(), "_oomdoctor_values", None)
    if flat is None:
        return None
    with torch.inference_mode(mode=False):
        return _laid_out(flat, tensor)


def keep_values(tensor: torch.Tensor, values: torch.Tensor | None, assumed: str = "") -> None:
    """Keep the values of a tensor on the device, where they are known and can be kept; else forget what was there.

    Args:
        tensor: The tensor on the device.
        values: Its values, on the host; None where nobody knows them.
        assumed: How they were assumed, where they are not known: an effect of `unknown_reads`.
    """
    storage: Any = tensor.untyped_storage()
    kept: Any = None if values is None else _kept(tensor, values)
    if assumed and kept is not None:
        kept.assumed = assumed
    storage._oomdoctor_values = kept  # noqa: SLF001 - ours


def can_keep(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of integers or booleans, and small enough that its values can be kept on the host."""
    is_real = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return not is_real and 0 < tensor.untyped_storage().nbytes() <= LARGEST_BYTES


def _kept(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """Return the bytes of a tensor's storage with its values; None where the rest is not known, or it is too large."""
    if not can_keep(tensor):
        return None
    nbytes = tensor.untyped_storage().nbytes()
    padded = -(-nbytes // 8) * 8  # a multiple of any element's size, so that it can be viewed as any type
    flat = getattr(tensor.untyped_storage(), "_oomdoctor_values", None)
    is_known = flat is not None and len(flat) == padded
    if not is_known and tensor.numel() * tensor.element_size() != nbytes:
        return None
    with torch.inference_mode(mode=False), torch.no_grad():
        flat = flat if is_known else torch.empty(padded, dtype=torch.uint8, device="cpu")
        try:
            _laid_out(flat, tensor).copy_(values)
        except RuntimeError:  # elements that share memory, or another shape
            return None
    return flat


def _laid_out(flat: Any, tensor: torch.Tensor) -> torch.Tensor:
    typed: torch.Tensor = flat.view(tensor.dtype)
    return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _copied(operator: Any, run: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy a tensor to the device, on it, or from it."""
    source, is_new = args[0], operator.name() == "aten::_to_copy"
    values = host_values(source) if is_unobserved() else None
    if not is_new and args[1].is_cpu and values is not None:
        _note(source)
        return args[1].copy_(values)
    result = run(operator, args, kwargs)
    target = result if is_new else args[1]
    if not target.is_cpu:
        keep_values(target, None if source.dtype.is_floating_point else values, _assumed(source))
    return result


def _computed(operator: Any, run: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator that computes, and on the host where all that it takes is known."""
    written = [tensor for tensor in written_tensors(operator, args, kwargs) if not tensor.is_cpu]
    can_know = kind_of(operator) is not OperatorKind.UNKNOWN and is_unobserved()
    fills = operator.name() in _FILLING or (can_know and _places_all(operator, args))
    overwritten = written if is_out(operator) else [tensor for tensor in written if fills and not _are_known(tensor)]
    fresh = {id(tensor): _empty_on_host(tensor) for tensor in overwritten} if can_know else {}
    hosts = partial(_host_or_fresh, fresh)
    given = with_tensors(operator, args) if can_know else args
    is_known = can_know and _are_known((given, tuple(kwargs.values())), hosts)
    assumed = _assumed((given, tuple(kwargs.values()))) if is_known else ""
    if assumed and kind_of(operator) is OperatorKind.FINDS:
        _note((given, tuple(kwargs.values())))
    result = run(operator, args, kwargs)
    if not (written or is_known):
        return result
    named = {name: replaced(value, hosts) for name, value in kwargs.items()} if is_known else {}
    values = run_on_host(operator, replaced(given, hosts), named) if is_known else None
    for tensor in written:
        if values is None or id(tensor) in fresh:  # else its values were written in place
            keep_values(tensor, None if values is None else fresh[id(tensor)], assumed)
        elif assumed:
            keep_values(tensor, host_values(tensor), assumed)
    if values is not None and not written:
        _keep_results(result, values, assumed)
    return result


def _places_all(operator: Any, args: Any) -> bool:
    """Return whether an operator writes every position of a vector, as the inverse of a permutation is made."""
    if operator.name() not in _PLACING:
        return False
    if operator.name() == "aten::scatter_.src":
        target, index = args[0], args[2]
    else:
        accumulates = any(args[3:4])  # which adds to what was there
        target, index = args[0], None if accumulates else next(iter(args[1]), None)
    positions = None if target.dim() != 1 or index is None or index.dtype is torch.bool else host_values(index)
    return positions is not None and len(set(positions.flatten().tolist())) == len(target)


def _host_or_fresh(fresh: Mapping[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor | None:
    return fresh[id(tensor)] if id(tensor) in fresh else host_values(tensor)


def _empty_on_host(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _keep_results(result: Any, values: Any, assumed: str) -> None:
    for made, known in zip(tensors_in(result), tensors_in(values), strict=False):
        if not made.is_cpu and made.shape == known.shape:
            keep_values(made, known, assumed)


def _are_known(value: Any, hosts: Callable[[torch.Tensor], torch.Tensor | None] = host_values) -> bool:
    return all(hosts(tensor) is not None for tensor in tensors_in(value))
