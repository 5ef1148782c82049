"""Matrix products: the workspaces of cuBLAS and cuBLASLt.

Source: `getChosenWorkspaceSize` and `getCUDABlasLtWorkspaceSize`, CublasHandlePool.cpp; `addmm_out_cuda_impl`,
Blas.cpp. Since torch 2.15 a product takes its workspace when it begins and gives it back when it ends (pull request
194311); before that each thread's handle keeps one. The sizes were seen on null GPUs with torch 2.6 and 2.15.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.tracing.taking import NOTHING, Temporaries, Workspace
from oomdoctor.tracing.version import TORCH
from oomdoctor.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.devices.card import Card
    from oomdoctor.tracing.taking import Call

_PLANE: Final = 2
_SINCE_HOPPER: Final = 9
_OLD_WORKSPACE: Final = 8_519_680
_NEW_WORKSPACE: Final = 32 << 20
_LT_WORKSPACE: Final = 1 << 20
_KEEPS_NONE: Final = (2, 15)
_UNIFIED: Final = (2, 8)
"""From here until cuBLAS keeps none, cuBLASLt works in what cuBLAS keeps."""


def workspace_bytes(card: Card) -> int:
    """What cuBLAS takes, unless `CUBLAS_WORKSPACE_CONFIG` says otherwise: pairs of KiB and how many of them."""
    configured = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if configured:
        numbers = [int(word) for word in configured.split(":") if word.isdecimal()]
        return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=False)) * KIB
    return _NEW_WORKSPACE if card.compute_capability[0] >= _SINCE_HOPPER else _OLD_WORKSPACE


def _product(call: Call) -> Temporaries:
    nbytes = workspace_bytes(call.card)
    workspace = () if not nbytes else (nbytes if _keeps_none() else Workspace("cublas", nbytes),)
    return Temporaries(after=(*_copies(call), *workspace))


def _batched_product(call: Call) -> Temporaries:
    """Columns by rows are multiplied element by element; seen on null GPUs in torch 2.15, and not in 2.6."""
    if TORCH >= _KEEPS_NONE and call.args[0].shape[-1] == 1:
        return NOTHING
    return _product(call)


def _copies(call: Call) -> tuple[int, ...]:
    """Bytes of each factor that cuBLAS cannot read as it lies, such as a gradient that is one number, expanded.

    Source: `prepare_matrix_for_cublas` and `prepare_batch_matrix_for_cublas`, Blas.cpp.
    """
    matrices = [given for given in call.args if isinstance(given, torch.Tensor)][-2:]
    return tuple(
        matrix.numel() * matrix.element_size()
        for matrix in matrices
        if matrix.dim() > 1 and not _is_readable(matrix) and not (matrix.dim() > _PLANE and matrix.is_contiguous())
    )


def _is_readable(matrix: torch.Tensor) -> bool:
    """Whether its rows or its columns lie side by side."""
    (rows, columns), (row_step, column_step) = matrix.shape[-2:], matrix.stride()[-2:]
    return (row_step == 1 and column_step >= max(1, rows)) or (column_step == 1 and row_step >= max(1, columns))


def _keeps_none() -> bool:
    return TORCH >= _KEEPS_NONE and os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") != "1"


def _product_and_sum(call: Call) -> Temporaries:
    """`addmm` goes to cuBLASLt where it can add the bias on the way."""
    bias, _, right = call.args[:3]
    fused = bias.dim() == 1 and bias.is_contiguous() and bias.shape[0] == right.shape[1] and min(right.shape) > 1
    if not fused or call.kwargs.get("beta", 1) != 1:
        return _product(call)
    lt = int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", "0")) * KIB or _LT_WORKSPACE
    copies = _copies(call)
    if _keeps_none():
        return Temporaries(after=(*copies, lt))
    kept = Workspace("cublas", workspace_bytes(call.card))
    return Temporaries(after=(*copies, kept) if TORCH >= _UNIFIED else (*copies, lt, kept))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(("mm", "baddbmm", "dot", "vdot", "mv", "addmv", "addmv_", "addbmm"), _product),
    "bmm": _batched_product,
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation"), _product_and_sum),
}
