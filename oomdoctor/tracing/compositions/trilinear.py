"""Products of three tensors, as `torch.nn.Bilinear` is made of: slice by slice, each by two matrix products.

Source: `_trilinear` and `sumproduct_pair`, Linear.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"_trilinear": _trilinear}


def _trilinear(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    summed: Sequence[int],
    unrolled: int = 1,
) -> torch.Tensor:
    tensors = [_expanded(tensor, dims) for tensor, dims in ((first, expand1), (second, expand2), (third, expand3))]
    shape = [max(lengths) for lengths in zip(*(tensor.shape for tensor in tensors), strict=True)]
    output = first.new_zeros([1 if dim in summed else length for dim, length in enumerate(shape)])
    for place in range(shape[unrolled]):
        part = output if unrolled in summed else output.narrow(unrolled, place, 1)
        _add_slice(part, [_slice(tensor, unrolled, place) for tensor in tensors], summed)
    return output.squeeze(tuple(summed))


def _add_slice(part: torch.Tensor, slices: Sequence[torch.Tensor], summed: Sequence[int]) -> None:
    """What the third tensor has not is summed over before it is multiplied."""
    first, second, third = slices
    product = _product(first, second, [dim for dim in summed if third.shape[dim] == 1])
    product = _product(product, third, [dim for dim in summed if third.shape[dim] != 1])
    part.add_(product)


def _expanded(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in sorted(dims):
        tensor = tensor.unsqueeze(dim)
    return tensor


def _slice(tensor: torch.Tensor, dim: int, place: int) -> torch.Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, place, 1)


def _product(left: torch.Tensor, right: torch.Tensor, summed: Sequence[int]) -> torch.Tensor:
    """One matrix product, of dimensions that both have, that one has, and that are summed over."""
    if not summed:
        return left * right
    for dim in summed:
        if left.shape[dim] != 1 and right.shape[dim] == 1:
            left = left.sum(dim, keepdim=True)
        elif left.shape[dim] == 1 and right.shape[dim] != 1:
            right = right.sum(dim, keepdim=True)
    rest = [dim for dim in range(left.dim()) if dim not in summed]
    both = [dim for dim in rest if left.shape[dim] != 1 and right.shape[dim] != 1]
    lefts = [dim for dim in rest if dim not in both and left.shape[dim] != 1]
    rights = [dim for dim in rest if dim not in both and dim not in lefts]
    sizes = [prod(tensor.shape[dim] for dim in dims) for tensor, dims in ((left, both), (left, lefts), (left, summed))]
    rows = left.permute(*both, *lefts, *summed, *rights).reshape(*sizes)
    columns = right.permute(*both, *summed, *rights, *lefts).reshape(sizes[0], sizes[2], -1)
    order = [*both, *lefts, *summed, *rights]
    shape = [max(left.shape[dim], right.shape[dim]) if dim not in summed else 1 for dim in order]
    return torch.bmm(rows, columns).view(shape).permute([order.index(dim) for dim in range(left.dim())])
