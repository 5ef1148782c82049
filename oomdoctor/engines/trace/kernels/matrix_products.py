"""Matrix products: the workspaces of cuBLAS and cuBLASLt, and products of three tensors.

Since torch 2.15 a product allocates its workspace when it begins and frees it when it ends (pull request 194311);
before that each thread's handle keeps one. The sizes were seen on null GPUs with torch 2.6 and 2.15.
`torch.nn.Bilinear` is a product of three tensors: slice by slice, each by two matrix products.

Source: `getChosenWorkspaceSize` and `getCUDABlasLtWorkspaceSize`, CublasHandlePool.cpp; `addmm_out_cuda_impl`,
Blas.cpp; `_trilinear` and `sumproduct_pair`, Linear.cpp; torch 2.6 to 2.15.
"""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.engines.trace.layouts import HALF_TYPES, plain_name
from oomdoctor.engines.trace.op_trace import NO_TEMPORARIES, Temporaries, Workspace
from oomdoctor.engines.trace.torch_internals import TORCH
from oomdoctor.units import KIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import AllocationStep, KernelsByName, OperatorCall, TemporariesByName

_SINCE_HOPPER: Final = 9
_OLD_WORKSPACE: Final = 8_519_680
_NEW_WORKSPACE: Final = 32 << 20
_LT_WORKSPACE: Final = 1 << 20
_TEMPORARY_WORKSPACES: Final = (2, 15)
_FUSES_PLANES: Final = (2, 15)
"""A version in which cuBLASLt adds matrices as well; not in 2.6, between which nothing is known."""
_UNIFIED: Final = (2, 8)
"""First version in which cuBLASLt uses the workspace that cuBLAS keeps."""


def _workspace_bytes(card: Card) -> int:
    """Return the bytes of cuBLAS's workspace, from `CUBLAS_WORKSPACE_CONFIG` (pairs of KiB and count) if it is set."""
    configured = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if configured:
        numbers = [int(word) for word in configured.split(":") if word.isdecimal()]
        return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=False)) * KIB
    return _NEW_WORKSPACE if card.compute_capability[0] >= _SINCE_HOPPER else _OLD_WORKSPACE


def cublas_workspace(card: Card) -> tuple[AllocationStep, ...]:
    """Return the allocation of cuBLAS's workspace for one call of it."""
    nbytes = _workspace_bytes(card)
    return () if not nbytes else (nbytes if _has_temporary_workspace() else Workspace("cublas", nbytes),)


def _product_temporaries(call: OperatorCall) -> Temporaries:
    """Take nothing where there is nothing to add up, but for two vectors."""
    factors = _factors(call)
    if any(factor.dim() > 1 for factor in factors) and not all(factor.numel() for factor in factors):
        return NO_TEMPORARIES
    return Temporaries(after=(*_copies(call), *cublas_workspace(call.card)))


def _factors(call: OperatorCall) -> list[torch.Tensor]:
    return [given for given in call.args if isinstance(given, torch.Tensor)][-2:]


def _batched_product_temporaries(call: OperatorCall) -> Temporaries:
    """Take nothing for columns by rows, an element-wise product; seen on null GPUs in torch 2.15, and not in 2.6."""
    if TORCH >= _TEMPORARY_WORKSPACES and call.args[0].shape[-1] == 1:
        return NO_TEMPORARIES
    return _product_temporaries(call)


def _copies(call: OperatorCall) -> tuple[int, ...]:
    """Return the bytes of the copies of factors that cuBLAS cannot read: an expanded gradient, or conjugate rows.

    Source: `prepare_matrix_for_cublas` and `prepare_batch_matrix_for_cublas`, Blas.cpp.
    """
    return tuple(
        matrix.numel() * matrix.element_size()
        for matrix in _factors(call)
        if matrix.dim() > 1 and not _is_readable(matrix)
    )


def _is_readable(matrix: torch.Tensor) -> bool:
    """Return whether the rows of a matrix are contiguous, or the columns, which it may read as their conjugates."""
    (rows, columns), (row_step, column_step) = matrix.shape[-2:], matrix.stride()[-2:]
    if matrix.is_contiguous() or (column_step == 1 and row_step >= max(1, columns)):
        return not matrix.is_conj()
    return row_step == 1 and column_step >= max(1, rows)


def _has_temporary_workspace() -> bool:
    return TORCH >= _TEMPORARY_WORKSPACES and os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") != "1"


def _addmm_temporaries(call: OperatorCall) -> Temporaries:
    """Take the workspace of cuBLASLt where it adds the bias as well, else that of a product."""
    if not _adds_in_product(call):
        return _product_temporaries(call)
    lt = int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", "0")) * KIB or _LT_WORKSPACE
    copies = _copies(call)
    if _has_temporary_workspace():
        return Temporaries(after=(*copies, lt))
    kept = Workspace("cublas", _workspace_bytes(call.card))
    return Temporaries(after=(*copies, kept) if TORCH >= _UNIFIED else (*copies, lt, kept))


def _adds_in_product(call: OperatorCall) -> bool:
    """Return whether cuBLASLt adds the bias: one of a row, or in half precision and out of place one of all rows."""
    bias, left, right = call.args[:3]
    beta, row = call.kwargs.get("beta", 1), right.shape[1:]
    if bias.is_complex() or not bias.is_contiguous() or min(right.shape) <= 1 or not left.numel():
        return False
    if bias.shape == row or (_FUSES_PLANES <= TORCH and bias.shape == (1, *row)):
        return bool(beta == 1)
    is_whole = _FUSES_PLANES <= TORCH and bias.shape == (left.shape[0], *row)
    return is_whole and bool(beta) and bias.dtype in HALF_TYPES and plain_name(call.operator) == "addmm"


TEMPORARIES: Final[TemporariesByName] = {
    **dict.fromkeys(("mm", "baddbmm", "dot", "vdot", "mv", "addmv", "addmv_", "addbmm"), _product_temporaries),
    "bmm": _batched_product_temporaries,
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation"), _addmm_temporaries),
}


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
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
    """Add a slice's product; dimensions that the third tensor lacks are summed over first."""
    first, second, third = slices
    product = _summed_product(first, second, [dim for dim in summed if third.shape[dim] == 1])
    product = _summed_product(product, third, [dim for dim in summed if third.shape[dim] != 1])
    part.add_(product)


def _expanded(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in sorted(dims):
        tensor = tensor.unsqueeze(dim)
    return tensor


def _slice(tensor: torch.Tensor, dim: int, place: int) -> torch.Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, place, 1)


def _summed_product(left: torch.Tensor, right: torch.Tensor, summed: Sequence[int]) -> torch.Tensor:
    """Multiply as one matrix product: dimensions of both are its batch, those of one its rows or columns."""
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
