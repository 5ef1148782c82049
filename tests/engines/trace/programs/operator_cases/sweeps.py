"""Operators whose temporaries depend on sizes, types and layouts, over some of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import HALF, Case, case, channels_last, given, leaf, ones, places, zeros

TYPES = (torch.float32, HALF)

_OVER: dict[str, Callable[[torch.Tensor, int], object]] = {
    "sum": lambda x, dim: x.sum(dim),
    "std": lambda x, dim: x.std(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "max": lambda x, dim: x.max(dim),
    "any": lambda x, dim: x.any(dim),
    "prod": lambda x, dim: x.prod(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "count_nonzero": lambda x, dim: x.count_nonzero(dim),
}
_OF_ALL: dict[str, Callable[[torch.Tensor], object]] = {
    "aminmax": torch.aminmax,
    "argmin": torch.argmin,
    "nansum": torch.nansum,
    "var_mean": torch.var_mean,
    "least of transposed": lambda x: x.t().min(),
    "sum of booleans": lambda x: x.bool().sum(),
    "sum of integers": lambda x: x.int().sum(),
}
_REDUCED = (((1000, 1000), 0), ((100_000, 10), 0), ((64, 5000, 33), 1), ((3, 100_003), 1), ((2, 300_000), 1))
_SORTED = (
    ((4096,), 0), ((4097,), 0), ((300_000,), 0), ((3, 4097), 1), ((127, 5000), 1), ((128, 5000), 1), ((5000, 7), 0),
    ((2, 1_000_000), 1),
)  # fmt: skip
_SELECTED = ((19_999, 1, 5000), (20_000, 1, 5000), (100_000, 4, 50), (800, 1000, 3), (400, 150_000, 1))
_WRITTEN = (1, 2304, 2305, 3841, 50_000)
_SCANNED = (1, 1921, 123_457)
_NORMED = {"rows": (1000, 16), "many rows": (30_000, 16), "images": (16, 64, 40, 40), "pixels": (40, 16, 1)}
_LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.kl_div)


def _reduced(function: Callable[..., object], shape: tuple[int, ...], dtype: torch.dtype, *dim: int) -> Case:
    return case(lambda x: function(x, *dim), given(*shape, dtype=dtype))


def _sorted(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> Case:
    return case(lambda x: x.sort(dim)[0], given(*shape, dtype=dtype))


def _selected(length: int, slices: int, count: int, dtype: torch.dtype) -> Case:
    return case(lambda x: x.topk(count)[0], given(slices, length, dtype=dtype))


def _written(count: int, rows: int, dtype: torch.dtype) -> Case:
    return case(lambda x: x[places(count)], leaf(rows, 16, dtype=dtype))


def _scanned(count: int, dtype: torch.dtype) -> Case:
    return case(lambda x: x.cumsum(0), given(count, dtype=dtype))


def _batch_norm(shape: tuple[int, ...], dtype: torch.dtype, *, training: bool, is_last: bool) -> Case:
    width = shape[1]

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = channels_last(x) if is_last else x
        return F.batch_norm(x, zeros(width), ones(width), weight, bias, training=training)

    return case(norm, leaf(*shape, dtype=dtype), leaf(width), leaf(width))


def _group_norm(dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    return case(
        lambda x, weight, bias: F.group_norm(layout(x), 4, weight, bias),
        leaf(8, 8, 20, 20, dtype=dtype), leaf(8, dtype=dtype), leaf(8, dtype=dtype),
    )  # fmt: skip


def _loss(function: Callable[..., torch.Tensor], reduction: str, dtype: torch.dtype) -> Case:
    return case(
        lambda x, target: function(x, target, reduction=reduction),
        leaf(2000, 1000, dtype=dtype), given(2000, 1000, dtype=dtype),
    )  # fmt: skip


CASES = {
    **{
        f"rows of {count} {dtype}": case(
            lambda w, count=count, dtype=dtype: F.embedding(places(count).to(dtype), w), leaf(99, 8)
        )
        for count in (4000, 20000, 100000)
        for dtype in (torch.int32, torch.int64)
    },
    **{
        f"{name} of {shape} over {dim}, {dtype}": _reduced(function, shape, dtype, dim)
        for name, function in _OVER.items()
        for shape, dim in _REDUCED
        for dtype in TYPES
    },
    **{
        f"{name} of all, {dtype}": _reduced(function, (1003, 997), dtype)
        for name, function in _OF_ALL.items()
        for dtype in TYPES
    },
    **{f"sort of {shape} over {dim}, {dtype}": _sorted(shape, dim, dtype) for shape, dim in _SORTED for dtype in TYPES},
    **{f"topk {sizes}, {dtype}": _selected(*sizes, dtype) for sizes in _SELECTED for dtype in TYPES},
    **{
        f"{count} of {rows} rows, {dtype}": _written(count, rows, dtype)
        for count in _WRITTEN
        for rows in (30, 70_000)
        for dtype in TYPES
    },
    **{f"cumsum of {count}, {dtype}": _scanned(count, dtype) for count in _SCANNED for dtype in (*TYPES, torch.int32)},
    **{
        f"batch norm of {name}, {dtype}, {training=}": _batch_norm(shape, dtype, training=training, is_last=False)
        for name, shape in _NORMED.items()
        for dtype in TYPES
        for training in (True, False)
    },
    **{
        f"batch norm of channels last, {dtype}, {training=}": _batch_norm(
            _NORMED["images"], dtype, training=training, is_last=True
        )
        for dtype in TYPES
        for training in (True, False)
    },
    **{
        f"group norm, {name}, {dtype}": _group_norm(dtype, layout)
        for name, layout in {"whole": torch.clone, "channels last": channels_last, "transposed": torch.adjoint}.items()
        for dtype in TYPES
    },
    **{
        f"{loss.__name__}, {reduction}, {dtype}": _loss(loss, reduction, dtype)
        for loss in _LOSSES
        for reduction in ("mean", "sum", "none")
        for dtype in TYPES
    },
}
