"""Decompositions of matrices and what is solved with them: the copies and the lists of pointers that PyTorch makes.

The work areas of cuSOLVER are known on a GPU alone and count as 0.

Source: `svd_cusolver`, `linalg_eigh_cusolver`, `geqrf_kernel`, `orgqr_kernel`, `cholesky_helper_cusolver`, `lu_factor`,
`get_lu_factor_solver_backend`, `lu_solve_kernel` and `triangular_solve_kernel`, BatchLinearAlgebra.cpp and
BatchLinearAlgebraLib.cpp in ATen/native/cuda/linalg; `_linalg_solve_ex`, `linalg_solve_triangular`, `lu_unpack`,
BatchLinearAlgebra.cpp; `_linalg_det`, `_linalg_slogdet` and `linalg_pinv`, LinearAlgebra.cpp; torch 2.15, compared with
null GPUs. Older ones may solve with MAGMA instead, whose copies are not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.kernels.matrix_products import cublas_workspace
from oomdoctor.engines.trace.op_trace import NO_TEMPORARIES, Temporaries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import AllocationStep, KernelsByName, OperatorCall, TemporariesByName

_INT: Final = 4
_LONG: Final = 8
_POINTER: Final = 8
_PAIR: Final = 2
_JACOBI_LONGEST: Final = 32
_QR_ROWS, _QR_ROWS_A_MATRIX = 256, 16
_TRIANGULAR_BATCH, _TRIANGULAR_ROWS = 8, 64
_LU_PAIR: Final = {torch.float32: 8400, torch.complex64: 8400, torch.float64: 2200, torch.complex128: 2200}
_LU_BATCH: Final = {torch.float32: 18600, torch.complex64: 18600, torch.float64: 16600, torch.complex128: 5200}
"""Elements of a matrix, by the number of matrices, above which they are decomposed one by one. Of two matrices, and of
more; with numbers of 64 bits the number counts with its square root once more."""
_LU_SQUARE_ROOT: Final = (torch.float64, torch.complex128)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Matrices of one shape, over the leading dimensions of a tensor."""

    count: int
    rows: int
    columns: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Batch:
        rows, columns = tensor.shape[-2:]
        return cls(math.prod(tensor.shape[:-2]), rows, columns, tensor.dtype)

    @property
    def nbytes(self) -> int:
        return self.count * self.rows * self.columns * self.dtype.itemsize


@dataclass(slots=True)
class _Steps:
    """Steps of a kernel, as they are gathered.

    Attributes:
        card: The card on which it runs.
        taken: The steps.
    """

    card: Card
    taken: list[AllocationStep] = field(default_factory=list)
    _allocations: int = 0

    def take(self, nbytes: int) -> int:
        """Allocate, and return the step that frees it."""
        self.taken.append(nbytes)
        self._allocations += 1
        return -self._allocations

    def call_cublas(self, pointers: int, lists: int) -> None:
        """Call cuBLAS with lists of so many pointers, which are freed after it."""
        held = [self.take(pointers * _POINTER) for _ in range(lists)]
        for workspace in cublas_workspace(self.card):
            if isinstance(workspace, int):
                held.append(self.take(workspace))
            else:
                self.taken.append(workspace)
        self.taken += held

    def as_temporaries(self, order: list[int] | None = None) -> Temporaries:
        """Return what a call takes once its results are there; what is not freed is freed as it ends."""
        return Temporaries(after=tuple(self.taken), order=order)


def _svd(call: OperatorCall) -> Temporaries:
    """Take a copy; Jacobi's method for many small matrices has square factors."""
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    steps.take(given.count * _INT)
    steps.take(given.nbytes)
    is_batched = given.count > 1 and max(given.rows, given.columns) <= _JACOBI_LONGEST
    shorter, longer = sorted((given.rows, given.columns))
    if not call.argument(2, "compute_uv", default=True):
        for length in (given.rows, given.columns):
            steps.take((given.count * length if is_batched else shorter) * length * given.dtype.itemsize)
    elif is_batched and shorter < longer and not call.argument(1, "full_matrices", default=False):
        steps.take(given.count * longer**2 * given.dtype.itemsize)
    return steps.as_temporaries(order=[0, 2, 1])


def _eigh(call: OperatorCall) -> Temporaries:
    steps = _Steps(call.card)
    steps.take(_Batch.of(call.args[0]).count * _INT)
    return steps.as_temporaries(order=[1, 0])


def _qr(call: OperatorCall) -> Temporaries:
    """Take the reflectors' factors, and the state of each of two functions, the second of which makes Q."""
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    makes_q = call.argument(1, "mode", default="reduced") != "r"
    steps.take(given.count * min(given.rows, given.columns) * given.dtype.itemsize)
    if not makes_q and given.rows > given.columns:
        steps.take(given.nbytes)
    if given.rows <= _QR_ROWS and given.count >= max(2, given.rows // _QR_ROWS_A_MATRIX):
        steps.call_cublas(given.count, lists=2)
    else:
        steps.taken.append(steps.take(_INT))
    if makes_q:
        steps.take(_INT)
    return steps.as_temporaries()


def _cholesky(call: OperatorCall) -> Temporaries:
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    if given.count > 1:
        steps.take(given.count * _POINTER)
    return steps.as_temporaries()


def _cholesky_solve(call: OperatorCall) -> Temporaries:
    steps = _Steps(call.card)
    _solve_with_cholesky(steps, call.args[1])
    return steps.as_temporaries()


def _cholesky_inverse(call: OperatorCall) -> Temporaries:
    """Solve for the unit matrix."""
    steps = _Steps(call.card)
    steps.take(_Batch.of(call.args[0]).nbytes)
    _solve_with_cholesky(steps, call.args[0])
    return steps.as_temporaries()


def _solve_with_cholesky(steps: _Steps, factor: torch.Tensor) -> None:
    """Solve with a copy of one factor, or two triangular systems for each of many."""
    given = _Batch.of(factor)
    if given.count == 1:
        steps.take(_INT)
        steps.take(given.nbytes)
    else:
        _solve_triangular(steps, given)
        _solve_triangular(steps, given)


def _triangular(call: OperatorCall) -> Temporaries:
    """Copy a factor that is neither rows nor columns; then see `_solve_triangular`."""
    factor, steps = call.args[0], _Steps(call.card)
    if not factor.is_contiguous() and not factor.mT.is_contiguous():
        steps.take(_Batch.of(factor).nbytes)
    _solve_triangular(steps, _Batch.of(factor))
    return steps.as_temporaries()


def _solve_triangular(steps: _Steps, factor: _Batch) -> None:
    """Solve many systems at once, but for few large ones, which are solved one by one."""
    is_looped = factor.count <= _TRIANGULAR_BATCH and factor.rows >= _TRIANGULAR_ROWS
    steps.call_cublas(factor.count, lists=0 if is_looped else 2)


def _lu_factor(call: OperatorCall) -> Temporaries:
    steps = _Steps(call.card)
    _factor(steps, _Batch.of(call.args[0]))
    return steps.as_temporaries()


def _factor(steps: _Steps, given: _Batch) -> None:
    """Decompose matrices with cuBLAS all at once, or with cuSOLVER one by one."""
    if _is_factored_at_once(given):
        steps.call_cublas(given.count, lists=1)


def _is_factored_at_once(given: _Batch) -> bool:
    if given.count == 1 or given.rows != given.columns:
        return False
    most = (_LU_PAIR if given.count == _PAIR else _LU_BATCH)[given.dtype] * given.count
    if given.count > _PAIR and given.dtype in _LU_SQUARE_ROOT:
        most *= math.isqrt(given.count)
    return given.rows**2 <= most


def _lu_unpack(call: OperatorCall) -> Temporaries:
    if not call.argument(3, "unpack_pivots", default=True):
        return NO_TEMPORARIES
    factors, steps = call.args[0], _Steps(call.card)
    steps.take(factors.shape[-2] * _LONG)
    if (count := _Batch.of(factors).count) > 1:
        steps.take(count * factors.shape[-2] * _LONG)
    return steps.as_temporaries()


def _lu_solve(call: OperatorCall) -> Temporaries:
    factors, right = call.args[0], call.args[2]
    steps, from_left = _Steps(call.card), call.argument(3, "left", default=True)
    is_transposed = bool(call.argument(4, "adjoint", default=False)) is bool(from_left)
    _solve(steps, factors, _Batch.of(right), from_left=from_left, is_transposed=is_transposed)
    return steps.as_temporaries()


def _solve_ex(call: OperatorCall) -> Temporaries:
    matrices, right = call.args[:2]
    steps, from_left = _Steps(call.card), call.argument(2, "left", default=True)
    _factor(steps, _Batch.of(matrices))
    if right.dim() == 1 or (right.dim() == matrices.dim() - 1 and right.shape == matrices.shape[:-1]):
        right = right.unsqueeze(-1)
        steps.take(_Batch.of(right).nbytes)
    _solve(steps, matrices, _Batch.of(right), from_left=from_left, is_transposed=not from_left)
    return steps.as_temporaries()


def _inverse(call: OperatorCall) -> Temporaries:
    """Decompose a copy, and solve for the unit matrix."""
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    steps.take(given.nbytes)
    steps.take(given.count * given.rows * _INT)
    _factor(steps, given)
    _solve(steps, call.args[0], given)
    return steps.as_temporaries()


def _solve(
    steps: _Steps, factors: torch.Tensor, right: _Batch, *, from_left: bool = True, is_transposed: bool = False
) -> None:
    """Solve with factors by a function of cuSOLVER for each, by one of cuBLAS for all, or as two triangular systems."""
    rows, sides = factors.shape[-1], right.columns if from_left else right.rows
    if rows == sides:
        is_looped, is_batched = False, rows <= 16  # noqa: PLR2004 - the limits are the library's, found by trying
    elif rows <= 64:  # noqa: PLR2004 - the same
        is_looped = rows > 8 and right.count <= 2 and (sides <= 64 or is_transposed or rows <= 32)  # noqa: PLR2004
        is_batched = not is_looped and (rows <= 8 or sides <= 8)  # noqa: PLR2004
    else:
        few = rows <= 128 and sides <= 2  # noqa: PLR2004
        is_looped, is_batched = few and right.count <= 2, few and right.count > 2  # noqa: PLR2004
    if is_looped:
        steps.take(_INT)
    elif is_batched:
        steps.call_cublas(right.count, lists=2)
    else:
        _solve_triangles(steps, factors, right, is_transposed=is_transposed)


def _solve_triangles(steps: _Steps, factors: torch.Tensor, right: _Batch, *, is_transposed: bool) -> None:
    """Solve two triangular systems, with a copy of the right side in the order of the pivots before or after it."""
    rows, each = _Batch(right.count, factors.shape[-1], factors.shape[-1], factors.dtype), factors.shape[-1] * _LONG
    order = steps.take(each)
    if right.count > 1:
        steps.take(each * right.count)
        steps.taken.append(order)
    if not is_transposed:
        steps.take(each)
        steps.take(each * right.count)
        steps.take(right.nbytes)
    _solve_triangular(steps, rows)
    _solve_triangular(steps, rows)
    if is_transposed:
        steps.take(right.nbytes)


def _det(call: OperatorCall) -> Temporaries:
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    steps.take(given.count * _INT)
    _factor(steps, given)
    steps.take(given.count * given.dtype.itemsize)
    _take_parity(steps, given)
    return steps.as_temporaries()


def _slogdet(call: OperatorCall) -> Temporaries:
    given, steps = _Batch.of(call.args[0]), _Steps(call.card)
    state = steps.take(given.count * _INT)
    _factor(steps, given)
    places, differ, parity, numbers = _take_parity(steps, given)
    steps.taken += [places, differ, numbers]
    diagonal = given.count * given.rows * given.dtype.itemsize
    signs = [steps.take(diagonal), steps.take(given.count * given.dtype.itemsize)]
    steps.taken += [parity, *signs]
    steps.take(diagonal)
    steps.taken.append(state)
    return steps.as_temporaries()


def _take_parity(steps: _Steps, given: _Batch) -> list[int]:
    """Count exchanged rows, with places, whether pivots differ from them, how many do, and each as a number."""
    pivots = given.count * given.rows
    return [steps.take(nbytes) for nbytes in (given.rows * _INT, pivots, given.count * _LONG, pivots * _LONG)]


TEMPORARIES: Final[TemporariesByName] = {
    "_linalg_svd": _svd,
    "_linalg_eigh": _eigh,
    "linalg_qr": _qr,
    "linalg_cholesky_ex": _cholesky,
    "_cholesky_solve_helper": _cholesky_solve,
    "cholesky_inverse": _cholesky_inverse,
    "linalg_solve_triangular": _triangular,
    "linalg_lu_factor_ex": _lu_factor,
    "lu_unpack": _lu_unpack,
    "linalg_lu_solve": _lu_solve,
    "_linalg_solve_ex": _solve_ex,
    "linalg_inv_ex": _inverse,
    "_linalg_det": _det,
    "_linalg_slogdet": _slogdet,
}


_DECOMPOSED_BY_LU: Final = (
    "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu_factor_ex"
)  # fmt: skip
_ALWAYS_ASKING: Final = (
    "_linalg_eigh", "_linalg_svd", "geqrf", "linalg_eig", "linalg_householder_product", "linalg_ldl_factor_ex",
    "linalg_lstsq", "linalg_qr", "ormqr",
)  # fmt: skip


def asks_for_work_area(name: str, args: Sequence[Any]) -> bool:
    """Return whether an operator asks cuSOLVER for the size of a work area; cuBLAS, for many matrices, has none."""
    if name in _DECOMPOSED_BY_LU:
        return not _is_factored_at_once(_Batch.of(args[0]))
    return name in _ALWAYS_ASKING or (name == "linalg_cholesky_ex" and _Batch.of(args[0]).count == 1)


def kernels() -> KernelsByName:
    """Return the kernels of this family."""
    return {"_linalg_check_errors": _find_no_errors, "linalg_pinv.atol_rtol_tensor": _pinv}


def _find_no_errors(info: torch.Tensor, name: str, *, is_matrix: bool) -> None:
    """Let every decomposition succeed, as a null GPU does."""


def _pinv(
    matrices: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    hermitian: bool = False,
) -> Any:  # noqa: ANN401 - or NotImplemented
    """Invert the singular values that are large enough."""
    if hermitian or not matrices.numel() or (atol is not None and rtol is None):
        return NotImplemented
    zeros = partial(torch.zeros, (), device=matrices.device)
    given = [zeros(dtype=torch.double) if tolerance is None else tolerance for tolerance in (atol, rtol)]
    absolute, relative = (tolerance.unsqueeze(-1) for tolerance in given)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    smallest = torch.maximum(absolute, relative * values.narrow(-1, 0, 1))
    zero, reciprocal = zeros(dtype=values.dtype), values.reciprocal()
    inverse = torch.where(values > smallest, reciprocal, zero).to(matrices.dtype)
    del zero, reciprocal
    return torch.matmul(right.mH * inverse.unsqueeze(-2), left.mH)
