"""Results of pointwise operators, without PyTorch's own functions for that, which are in Python and import SymPy."""

from __future__ import annotations

from typing import Any

import torch

_TAG = getattr(torch.Tag, "pointwise", None)


def pointwise_result(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:  # noqa: ANN401
    """What the operator would return, on `meta`; None where it is not plain enough to tell.

    Its shape and strides are those of its arguments, where these agree or lie in order; its type is what the operator
    makes of tensors of one element on the host.
    """
    if _TAG not in operator.tags or kwargs or any(isinstance(argument, list | tuple) for argument in args):
        return None
    if len(operator._schema.returns) != 1 or operator._schema.is_mutable:  # noqa: SLF001 - no public way
        return None
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    size = _common_size(tensors)
    stride = None if size is None else _common_stride(tensors, size)
    if size is None or stride is None:
        return None
    tiny = operator(*(_tiny(argument) if isinstance(argument, torch.Tensor) else argument for argument in args))
    return torch.empty_strided(size, stride, dtype=tiny.dtype, device="meta")


def _common_size(tensors: list[torch.Tensor]) -> torch.Size | None:
    """The shape that all broadcast to; None where they do not, which the operator itself says."""
    rank = max((tensor.dim() for tensor in tensors), default=0)
    padded = [(1,) * (rank - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    lengths = [{length for length in column if length != 1} for column in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in lengths):
        return None
    return torch.Size([column.pop() if column else 1 for column in lengths])


def _common_stride(tensors: list[torch.Tensor], size: torch.Size) -> tuple[int, ...] | None:
    whole = [tensor for tensor in tensors if tensor.shape == size]
    if all(tensor.is_contiguous() for tensor in tensors):
        return torch.empty(size, device="meta").stride()
    strides = {tensor.stride() for tensor in whole}
    if len(whole) == sum(tensor.dim() > 0 for tensor in tensors) and len(strides) == 1 and is_dense(whole[0]):
        return strides.pop()
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side in some order."""
    expected = 1
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True


def _tiny(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones((1,) * tensor.dim(), dtype=tensor.dtype)
