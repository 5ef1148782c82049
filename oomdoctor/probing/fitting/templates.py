"""An operator's call as numbers in a frame, so that the same call at another micro-batch can be made up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.tracing.taking import Call


def numbers_in(call: Call) -> list[int]:
    """Every whole number of a call: shapes, strides, arguments, in order."""
    return list(_numbers((call.args, call.kwargs, call.results)))


def with_numbers(call: Call, numbers: Sequence[int]) -> Call:
    """The same call with other numbers; its tensors have no memory."""
    following = iter(numbers)
    args, kwargs, results = _rebuilt((call.args, call.kwargs, call.results), following)
    return replace(call, args=args, kwargs=kwargs, results=results)


def _numbers(value: Any) -> Iterator[int]:  # noqa: ANN401 - nests of arguments
    if isinstance(value, torch.Tensor):
        yield from (*value.shape, *value.stride())
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)


def _rebuilt(value: Any, numbers: Iterator[int]) -> Any:  # noqa: ANN401 - nests of arguments
    if isinstance(value, torch.Tensor):
        shape, stride = ([next(numbers) for _ in value.shape] for _ in range(2))
        return value if value.is_cpu else torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    if isinstance(value, int) and not isinstance(value, bool):
        return next(numbers)
    if isinstance(value, list | tuple):
        items = [_rebuilt(item, numbers) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: _rebuilt(item, numbers) for name, item in value.items()}
    return value
