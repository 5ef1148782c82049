"""Decompositions of matrices, and what is solved with them."""

from __future__ import annotations

import torch
from torch import linalg

from operator_cases.making import Case, case, given, leaf

_SHAPES = {"one": (60, 40), "few": (8, 60, 40), "many": (300, 24, 20), "wide": (5, 20, 50),
    "longest of Jacobi": (3, 32, 30), "too long for Jacobi": (3, 33, 30),
}  # fmt: skip
_SQUARES = {
    "one": (60, 60), "few": (8, 60, 60), "many": (300, 20, 20), "large": (2, 150, 150), "small": (9, 7, 7),
    "two dimensions": (2, 3, 30, 30), "eight": (8, 64, 64), "nine": (9, 64, 64), "below 64": (8, 63, 63),
}  # fmt: skip
_SIZES = (8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 520)


def _of_shapes(size: str, *shape: int) -> dict[str, Case]:
    return {
        f"svd of {size}": case(lambda x: linalg.svd(x, full_matrices=False)[0], leaf(*shape)),
        f"full svd of {size}": case(linalg.svd, given(*shape)),
        f"singular values of {size}": case(linalg.svdvals, leaf(*shape)),
        f"singular values alone of {size}": case(linalg.svdvals, given(*shape)),
        f"pinv of {size}": case(linalg.pinv, leaf(*shape)),
        f"qr of {size}": case(lambda x: linalg.qr(x)[1], leaf(*shape)),
        f"complete qr of {size}": case(lambda x: linalg.qr(x, mode="complete"), given(*shape)),
        f"r alone of {size}": case(lambda x: linalg.qr(x, mode="r")[1], given(*shape)),
        f"lu of {size}": case(lambda x: linalg.lu_factor(x)[0], leaf(*shape)),
        f"nuclear norm of {size}": case(lambda x: linalg.matrix_norm(x, "nuc"), leaf(*shape)),
    }


def _of_squares(size: str, *shape: int, dtype: torch.dtype = torch.float32) -> dict[str, Case]:
    square, vector = leaf(*shape, dtype=dtype), leaf(*shape[:-1], dtype=dtype)
    five, twelve = (leaf(*shape[:-1], columns, dtype=dtype) for columns in (5, 12))
    return {
        f"eigh of {size}": case(lambda x: linalg.eigh(x)[1], square),
        f"eigvalsh of {size}": case(linalg.eigvalsh, square),
        f"cholesky of {size}": case(linalg.cholesky, square),
        f"cholesky solve of {size}": case(lambda x, y: torch.cholesky_solve(y, linalg.cholesky(x)), square, twelve),
        f"cholesky inverse of {size}": case(lambda x: torch.cholesky_inverse(linalg.cholesky(x)), square),
        f"solve of {size}": case(linalg.solve, square, square),
        f"solve vector of {size}": case(linalg.solve, square, vector),
        f"solve of 5 columns of {size}": case(linalg.solve, square, five),
        f"solve of 12 columns of {size}": case(linalg.solve, square, twelve),
        f"solve transposed of {size}": case(lambda x, y: linalg.solve(x.mT, y), square, square),
        f"solve rows of {size}": case(lambda x, y: linalg.solve(x, y, left=False), square, square),
        f"lu solve of {size}": case(lambda x, y: linalg.lu_solve(*linalg.lu_factor(x), y), square, twelve),
        f"inv of {size}": case(linalg.inv, square),
        f"det of {size}": case(linalg.det, square),
        f"slogdet of {size}": case(lambda x: linalg.slogdet(x)[1], square),
        f"triangular of {size}": case(lambda x, y: linalg.solve_triangular(x, y, upper=True), square, square),
    }


def _all() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for size, shape in _SHAPES.items():
        cases |= _of_shapes(size, *shape)
    for size, shape in _SQUARES.items():
        cases |= _of_squares(size, *shape)
    cases |= _of_squares("doubles", 8, 30, 30, dtype=torch.float64)
    for length in _SIZES:
        for count in (1, 2, 3):
            name = f"{count} of {length}"
            cases[f"qr of {name}"] = case(linalg.qr, given(count, length, length))
            cases[f"inv of {name}"] = case(linalg.inv, given(count, length, length))
            cases[f"svd of {name}"] = case(linalg.svd, given(count, length, length))
            cases[f"solve of {name}"] = case(linalg.solve, given(count, length, length), given(count, length, 2))
    return cases


CASES = _all()
